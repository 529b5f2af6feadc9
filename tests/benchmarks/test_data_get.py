"""`seewhen data get` against a real server that plays the hub and the other hosts."""

from __future__ import annotations

import contextlib
import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from elsewhere import REVISION, Elsewhere, serving
from PIL import Image

from seewhen.benchmarks import load
from seewhen.benchmarks.chair.files import _annotation_file
from seewhen.benchmarks.checking import check
from seewhen.benchmarks.download import DownloadFailed, RemoteFile, fetch
from seewhen.benchmarks.files import find_image
from seewhen.benchmarks.getting import bring, read_record
from seewhen.benchmarks.mme.questions import QUESTIONS
from seewhen.benchmarks.pope.questions import KINDS, load_questions
from seewhen.benchmarks.pope.repope import labels_in
from seewhen.benchmarks.sources import SourcePart, unzip

pytestmark = pytest.mark.slow

BIG = os.urandom(3_000_000)


def jpeg(shade: int = 0) -> bytes:
    made = io.BytesIO()
    Image.new("L", (8, 8), shade).save(made, "JPEG")
    return made.getvalue()


def zipped(members: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()


def sha256(content: bytes) -> str:
    import hashlib

    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def there():
    with serving() as found:
        yield found


def start(
    there: Elsewhere | None, *arguments: object, stdin: int = subprocess.DEVNULL, **variables: str
) -> subprocess.Popen:
    hub = there.url if there else "http://127.0.0.1:1"
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HF_") and "proxy" not in k.lower()}
    return subprocess.Popen(
        [sys.executable, "-c", "import seewhen.cli; seewhen.cli.main()", "data", "get", *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean | {"HF_ENDPOINT": hub, "HF_TOKEN": "hf_secret", "COLUMNS": "200"} | variables,
    )


def get(there: Elsewhere | None, *arguments: object, code: int = 0, **variables: str) -> tuple[str, str]:
    process = start(there, *arguments, **variables)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    assert "Traceback" not in err and "hf_secret" not in out + err
    return out, err


# -- one file -----------------------------------------------------------------------------------------------


def test_a_download_that_breaks_off_goes_on(there: Elsewhere, tmp_path: Path) -> None:
    there.files["h/big.bin"] = BIG
    there.cut["big.bin"] = [1_000_000, 1_500_000]
    seen: list[int] = []
    path = fetch(
        RemoteFile(f"{there.url}/h/big.bin", size=len(BIG), checksum=sha256(BIG)), tmp_path / "x", seen.append
    )
    assert path.read_bytes() == BIG and sum(seen) == len(BIG)
    assert there.ranges("big.bin") == [None, "bytes=1000000-", "bytes=2500000-"]
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_what_is_whole_is_not_asked_for_again(there: Elsewhere, tmp_path: Path) -> None:
    there.files["h/big.bin"] = BIG
    remote = RemoteFile(f"{there.url}/h/big.bin", size=len(BIG), checksum=sha256(BIG))
    (tmp_path / "x").write_bytes(BIG)
    fetch(remote, tmp_path / "x")
    assert there.asked == []
    (tmp_path / "x").write_bytes(BIG[:-1])  # whole by name only
    fetch(remote, tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == BIG
    (tmp_path / "y.part").write_bytes(BIG)  # killed between the last byte and the rename
    assert fetch(remote, tmp_path / "y").read_bytes() == BIG


@pytest.mark.parametrize("wrong", ["bytes", "size"])
def test_another_content_is_refused_and_deleted(there: Elsewhere, tmp_path: Path, wrong: str) -> None:
    there.files["h/big.bin"] = BIG if wrong == "bytes" else BIG[:-7]
    there.spoilt = {"big.bin"} if wrong == "bytes" else set()
    with pytest.raises(DownloadFailed, match="not the published file"):
        fetch(RemoteFile(f"{there.url}/h/big.bin", size=len(BIG), checksum=sha256(BIG)), tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    assert len(there.asked) == 1


def test_without_a_checksum_an_old_part_is_not_trusted(there: Elsewhere, tmp_path: Path) -> None:
    there.files["h/small.jpg"] = jpeg()
    (tmp_path / "x.part").write_bytes(b"rubbish")
    assert fetch(RemoteFile(f"{there.url}/h/small.jpg"), tmp_path / "x").read_bytes() == jpeg()


def test_a_missing_file_is_not_tried_five_times(there: Elsewhere, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="HTTP 404"):
        fetch(RemoteFile(f"{there.url}/h/none"), tmp_path / "x")
    assert len(there.asked) == 1


# -- the command --------------------------------------------------------------------------------------------


def release() -> bytes:
    """MME with as many questions as are published, in both layouts its archive has."""
    members = {"MME_Benchmark_release_version/eval_tool/calculation.py": b"", "__MACOSX/existence/0.txt": b"x"}
    for task, count in QUESTIONS.items():
        inner = ("images/", "questions_answers_YN/") if task in ("posters", "landmark") else ("", "")
        for image in range(count // 2):
            base = f"MME_Benchmark_release_version/MME_Benchmark/{task}/"
            members[f"{base}{inner[0]}{image:04d}.jpg"] = jpeg()
            members[f"{base}{inner[1]}{image:04d}.txt"] = b"Is it? Please answer yes or no.\tYes\nOr not?\tNo\n"
    members["../../existence/../evil.txt"] = b"out of here"
    return zipped(members)


def test_mme_from_the_hub(there: Elsewhere, tmp_path: Path) -> None:
    there.datasets["darkyarding/MME"] = {"MME_Benchmark_release_version.zip": release(), "README.md": b"#"}
    there.licence = "cc-by-nc-4.0"
    folder = tmp_path / "data"
    out, _ = get(there, "mme", "--to", folder, "--dry-run")
    assert "darkyarding/MME" in out and "cc-by-nc-4.0" in out and " MB" in out
    assert not folder.exists() and not there.ranges("release_version.zip")
    out, _ = get(there, "mme", "--to", folder, code=1)  # nobody there to say yes
    assert not folder.exists() and not there.ranges("release_version.zip")
    out, _ = get(there, "mme", "--to", folder, "--yes")
    assert "Pictures: 1187 of 1187." in out
    assert {finding.state for finding in check(folder, ["mme"])} == {"present"}
    mme = load("mme", folder)
    assert all(mme.picture(sample, folder).is_file() for sample in mme.samples())
    [entry] = read_record(folder)["mme"]
    assert entry["revision"] == REVISION and entry["files"][0]["checksum"].startswith("sha256:")
    assert not list(tmp_path.rglob("evil*")) and not (folder / ".downloads").exists()
    before = len(there.ranges("release_version.zip"))
    out, _ = get(there, "mme", "--to", folder)
    assert "here already" in out and len(there.ranges("release_version.zip")) == before


@pytest.mark.parametrize(("said", "code"), [("y\n", 0), ("Yes\n", 0), ("n\n", 1), ("\n", 1), (None, 130)])
def test_the_question(there: Elsewhere, tmp_path: Path, said: str | None, code: int) -> None:
    """Yes, no, and Ctrl-C, which is neither."""
    there.datasets["darkyarding/MME"] = {"MME_Benchmark_release_version.zip": release()}
    process = start(there, "mme", "--to", tmp_path / "data", stdin=subprocess.PIPE)
    asked = ""
    while not asked.endswith("[y/N]:"):
        asked += process.stderr.read(1)
        assert process.poll() is None, asked
    if said is None:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(said, timeout=120)
    assert process.returncode == code and "Traceback" not in err
    assert (tmp_path / "data").exists() == (code == 0)


def test_killed_and_started_again(there: Elsewhere, tmp_path: Path) -> None:
    content = release()
    name = "MME_Benchmark_release_version.zip"
    there.datasets["darkyarding/MME"] = {name: content}
    there.stall = {name}
    process = start(there, "mme", "--to", tmp_path, "--yes")
    assert there.stalled.wait(60)
    part = tmp_path / ".downloads" / f"{name}.part"
    while not part.exists() or not part.stat().st_size:
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.communicate()
    got = part.stat().st_size
    assert 0 < got < len(content)
    assert not (tmp_path / "MME_Benchmark_release_version").exists()
    there.stall = set()
    get(there, "mme", "--to", tmp_path, "--yes")
    assert there.ranges(name) == [None, f"bytes={got}-"]
    assert {finding.state for finding in check(tmp_path, ["mme"])} == {"present"}


def test_a_spoilt_archive_leaves_nothing(there: Elsewhere, tmp_path: Path) -> None:
    there.datasets["darkyarding/MME"] = {"MME_Benchmark_release_version.zip": release()}
    there.spoilt = {"MME_Benchmark_release_version.zip"}
    _, err = get(there, "mme", "--to", tmp_path, "--yes", code=2)
    assert "not the published file" in err and "By hand: put MME_Benchmark_release_version" in err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_offline_and_unreachable(there: Elsewhere, tmp_path: Path) -> None:
    _, err = get(there, "mme", "--to", tmp_path, "--yes", code=2, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE" in err and "By hand" in err and err.count("\n") == 1
    _, err = get(there, "chair", "--to", tmp_path, "--yes", code=2, HF_HUB_OFFLINE="1")  # not the hub, but offline
    assert "HF_HUB_OFFLINE" in err and there.asked == []
    _, err = get(None, "mme", "--to", tmp_path, "--yes", code=2)
    assert "The hub does not give the dataset darkyarding/MME" in err and "HF_ENDPOINT" in err and "By hand" in err
    _, err = get(there, "mme", "--to", tmp_path, "--yes", code=2)  # a hub that has no such dataset
    assert "darkyarding/MME" in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def parquet(questions: Mapping[str, Sequence[Mapping[str, object]]], pictures: Mapping[str, bytes]) -> bytes:
    """POPE as the hub has it: one row a question, its picture in it."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet

    rows = [
        {
            "id": str(number),
            "question_id": str(line["question_id"]),
            "question": line["text"],
            "answer": line["label"],
            "image_source": str(line["image"]).removesuffix(".jpg"),
            "image": {"bytes": pictures[str(line["image"])], "path": None},
            "category": kind,
        }
        for kind, lines in questions.items()
        for number, line in enumerate(lines)
    ]
    made = io.BytesIO()
    pyarrow.parquet.write_table(arrow.Table.from_pylist(rows[::-1]), made)
    return made.getvalue()


def test_pope_from_the_hub_is_the_published_one(there: Elsewhere, tmp_path: Path, shared: Path) -> None:
    asked = {
        kind: [json.loads(line) for line in (shared / f"pope/coco_pope_{kind}.json").read_text().splitlines()]
        for kind in KINDS
    }
    names = sorted({line["image"] for lines in asked.values() for line in lines})
    shades = {name: jpeg(number % 250) for number, name in enumerate(names)}
    there.datasets["lmms-lab/POPE"] = {"data/test-00000-of-00001.parquet": parquet(asked, shades)}
    home = "raw.githubusercontent.com/RUCAIBox/POPE/3df3ba1b110ecce25696989577fad583b67d4239/output/seem"
    for name in ("aokvqa", "gqa"):
        for kind in KINDS:
            content = (shared / f"pope/{name}_pope_{kind}.json").read_bytes()
            there.files[f"{home}/{name}/{name}_pope_seem_{kind}.json"] = content
    corrected = "raw.githubusercontent.com/YanNeu/RePOPE/bcf22e5690d587cce34e1728af3efdcfaf747d29/annotations"
    for path in (shared / "repope").glob("*.json"):
        there.files[f"{corrected}/{path.name}"] = path.read_bytes()
    for question in load_questions(shared / "pope/aokvqa_pope_random.json"):
        there.files[f"s3.amazonaws.com/images.cocodataset.org/val2014/{question.image}"] = jpeg()
    out, _ = get(there, "pope", "--to", tmp_path, "--yes", "--mirror", there.url)
    assert {finding.state for finding in check(tmp_path, ["pope"])} == {"ok"}
    assert all(find_image(tmp_path, name).read_bytes() == shades[name] for name in names)
    assert "GQA's pictures are only in" in out
    assert len(labels_in(tmp_path)) == len(labels_in(shared / "pope")) > 2774
    wanted = {sample.image for sample in load("pope", tmp_path).samples()}
    lacking = {sample.image for sample in load("pope", tmp_path, split="gqa").samples()}
    assert f"Pictures: {len(wanted - lacking)} of {len(wanted)}" in out


def test_a_dataset_that_was_rearranged_is_told(there: Elsewhere, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow.parquet

    made = io.BytesIO()
    pyarrow.parquet.write_table(arrow.Table.from_pylist([{"prompt": "?"}]), made)
    there.datasets["lmms-lab/POPE"] = {"data/test-00000-of-00001.parquet": made.getvalue()}
    _, err = get(there, "pope", "--to", tmp_path, "--yes", "--mirror", there.url, code=2)
    assert "not laid out as it used to be" in err and "RUCAIBox/POPE" in err


def test_amber(there: Elsewhere, tmp_path: Path, shared: Path) -> None:
    home = "raw.githubusercontent.com/junyangwang0410/AMBER/534babf6bbfcce2e735c26289dedfb21cef3c939/data"
    for path in (shared / "amber").rglob("*.*"):
        there.files[f"{home}/{'query/' if path.name.startswith('query') else ''}{path.name}"] = path.read_bytes()
    there.datasets["stzhao/amber"] = {
        "AMBER.zip": zipped({f"AMBER/image/AMBER_{number}.jpg": jpeg() for number in range(1, 1005)})
    }
    there.licence = None
    out, _ = get(there, "amber", "--to", tmp_path, "--yes", "--mirror", there.url)
    assert {finding.state for finding in check(tmp_path, ["amber"])} == {"ok"}
    assert "Pictures: 1004 of 1004." in out and "none stated on the hub" in out


def test_chair_refuses_another_archive_in_cocos_place(there: Elsewhere, tmp_path: Path) -> None:
    home = "s3.amazonaws.com/images.cocodataset.org"
    there.files[f"{home}/annotations/annotations_trainval2014.zip"] = zipped({"annotations/x.json": b"{}"})
    _, err = get(there, "chair", "--to", tmp_path, "--yes", "--mirror", there.url, code=2)
    assert "252872794" in err and "annotations_trainval2014.zip of cocodataset.org" in err


def test_chairs_annotations_are_taken_from_their_archive(there: Elsewhere, tmp_path: Path) -> None:
    """The real archive has a checksum nobody can imitate, so this is the same part with another address."""
    names = [f"{what}_{part}2014.json" for what in ("instances", "captions") for part in ("train", "val")]
    content = zipped({f"annotations/{name}": b"{}" for name in (*names, "person_keypoints_val2014.json")})
    there.files["h/annotations.zip"] = content
    remote = RemoteFile(f"{there.url}/h/annotations.zip", checksum=sha256(content))
    part = SourcePart(
        "annotations", "h", "", len(content), lambda _: [remote], lambda a, f: unzip(a, f, _annotation_file)
    )
    bring("chair", part, tmp_path, lambda size: None, lambda: None)
    assert sorted(path.name for path in (tmp_path / "annotations").iterdir()) == sorted(names)
    assert {finding.state for finding in check(tmp_path, ["chair"])} == {"present"}


def test_what_eval_misses_names_the_command(tmp_path: Path) -> None:
    from seewhen.errors import InvalidInput
    from seewhen.runs.evaluate import Ask, make_tasks

    with pytest.raises(InvalidInput, match=f"seewhen data get pope --to {tmp_path}"):
        Ask("pope", data=str(tmp_path)).load()
    with pytest.raises(InvalidInput, match="seewhen data get mme --to"):
        Ask("mme", data=str(tmp_path / "none")).load()
    line = {"question_id": 1, "image": "COCO_val2014_000000000001.jpg", "text": "Is it?", "label": "yes"}
    (tmp_path / "coco_pope_random.json").write_text(json.dumps(line))
    ask = Ask("pope", data=str(tmp_path))
    with pytest.raises(InvalidInput, match="seewhen data get"):
        make_tasks(ask, ask.load(), ask.load().samples())


class _Liar(http.server.BaseHTTPRequestHandler):
    """Sends more than was asked for, or says nonsense about it; counts what it got rid of."""

    length: str | None = None
    sent = 0

    def do_GET(self) -> None:
        self.send_response(200)
        if self.length is not None:
            self.send_header("Content-Length", self.length)
        self.end_headers()
        with contextlib.suppress(OSError):
            for _ in range(600):
                self.wfile.write(bytes(1 << 20))
                type(self).sent += 1

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("length", [None, "-1", "x", "9" * 5000, str(600 << 20), "4000"])
def test_a_server_that_lies_about_a_size_is_refused(tmp_path: Path, length: str | None) -> None:
    liar = type("Liar", (_Liar,), {"length": length, "sent": 0})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        remote = RemoteFile(f"http://127.0.0.1:{server.server_port}/x", size=4000, checksum=sha256(b"other"))
        with pytest.raises(DownloadFailed):
            fetch(remote, tmp_path / "x")
        server.shutdown()
    assert not (tmp_path / "x").exists() and liar.sent < 50  # MiB: what fits into the buffers between
