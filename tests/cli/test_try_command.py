"""`seewhen try`: it says what the commands for one picture say, goes on after a kill, and may grow."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import seewhen
from cli.command import Ran
from seewhen.asking.options import DESCRIBE
from seewhen.runs import model_answerer

Run = Callable[..., Ran]
BAD = "<b>broken.png"


def scenes(folder: Path, count: int, part: str = "shifted") -> dict[str, list[str]]:
    """Drawn scenes in a folder; what each shows, by the name of its file."""
    from seewhen.scenes import render, sample

    folder.mkdir(exist_ok=True)
    shown = {}
    for number in range(count):
        scene = sample(part, number)  # type: ignore[arg-type]
        render(scene).save(folder / f"{number}.png")
        shown[f"{number}.png"] = list(scene.names)
    return shown


def samples(out: Path) -> dict[str, dict[str, dict]]:
    """The records of every run, by method and picture."""
    found: dict[str, dict[str, dict]] = {}
    for path in sorted(out.glob("runs/*")):
        name = json.loads((path / "manifest.json").read_text())["config"]["method"]["label"]
        lines = (path / "samples.jsonl").read_text().splitlines()
        found[name] = {json.loads(line)["id"]: json.loads(line) for line in lines}
    return found


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged model on a few scenes and a file that is no picture."""
    folder = tmp_path_factory.mktemp("packaged")
    shown = scenes(folder / "photos", 6)
    (folder / "labels.json").write_text(json.dumps(shown))
    (folder / "photos" / BAD).write_text("not a picture")
    return folder


def command(folder: Path, *more: object) -> tuple[object, ...]:
    flags = ("--methods", "regular,cai,confirm:coco", "--lexicon", "coco", "-n", 24, "--words", 1, "--no-open")
    return ("try", "packaged", folder / "photos", "--out", folder / "tried", *flags, *more)


@pytest.mark.slow
def test_the_packaged_model_on_a_folder(run: Run, packaged: Path) -> None:
    ran = run(*command(packaged, "--json"))
    assert ran.code == 0, ran.err
    found = ran.json
    assert found["schema"] == "seewhen/tried/1" and list(found["skipped"]) == [BAD]
    assert [method["method"] for method in found["methods"]] == ["regular", "cai", "confirm:coco"]
    assert sorted(picture["name"] for picture in found["pictures"]) == [f"{n}.png" for n in range(6)]

    loaded = seewhen.load()
    picture = found["pictures"][0]
    for method in ("regular", "cai"):
        alone = seewhen.generate(*loaded, picture["path"], DESCRIBE, method, max_new_tokens=24, do_sample=False)
        assert picture["answers"][method] == alone.text
    checked = seewhen.check(*loaded, picture["path"], picture["answers"]["regular"], lexicon="coco")
    verdicts = {each["object"]: (each["verdict"], each["probability"]) for each in picture["objects"]}
    for mention in checked.mentions:
        verdict, probability = verdicts[mention.object]
        assert verdict == mention.verdict and probability == pytest.approx(mention.probability, abs=2e-3)
    regular = found["methods"][0]
    assert regular["counts"]["named"] == sum(
        "regular" in each["named_by"] for picture in found["pictures"] for each in picture["objects"]
    )
    assert found["methods"][2]["cost"]["questions"] > 0 and regular["cost"]["ratio"] == 1

    page = (packaged / "tried" / "index.html").read_text()
    assert BAD not in page and "&lt;b&gt;broken.png" in page and "://" not in page
    assert len(list((packaged / "tried" / "words").iterdir())) == 1


def test_labels_give_what_score_gives(run: Run, packaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(*command(packaged)).code == 0
    monkeypatch.setattr(model_answerer, "load", lambda *_, **__: pytest.fail("a model was loaded"))
    model_answerer.loaded_once.cache_clear()
    ran = run(*command(packaged, "--objects", packaged / "labels.json", "--words", 0, "--json"))
    assert ran.code == 0, ran.err  # labels may come later: nothing is computed for them
    captions, table = packaged / "captions.jsonl", packaged / "table.json"
    lines = [{"image_id": p["name"], "caption": p["answers"]["cai"]} for p in ran.json["pictures"]]
    captions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table.write_text(json.dumps({"categories": [], "images": json.loads((packaged / "labels.json").read_text())}))
    score = run("score", "chair", "--answers", captions, "--objects", table, "--json").json
    cai = ran.json["methods"][1]
    for name in ("chair_i", "chair_s", "recall"):
        assert cai["shares"][name]["value"] == pytest.approx(score["metrics"][name], abs=1e-3)
        assert cai["against_regular"][name]["verdict"] in ("same", "open", "unclear", "real")
    told = run(*command(packaged, "--objects", packaged / "labels.json", "--words", 0))
    assert "labelled pictures" in told.out and "of what is there" in told.out and f"skipped: {BAD}" in told.err


# -- a tiny checkpoint: killed, grown, refused ----------------------------------------------------------------


def tiny(checkpoint: Path, folder: Path, *more: object) -> list[str]:
    flags = ("--methods", "regular,min-p", "--lexicon", "coco", "-n", 8, "--words", 0, "--no-open", "--batch", 1)
    return list(map(str, ("try", checkpoint, folder / "photos", "--out", folder / "tried", *flags, *more)))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "Ctrl-C"])
@pytest.mark.slow
def test_it_goes_on_where_it_was(run: Run, checkpoint: Path, tmp_path: Path, number: signal.Signals) -> None:
    scenes(tmp_path / "photos", 6)
    arguments = tiny(checkpoint, tmp_path, "--do-sample", "--seed", 3)
    start = [sys.executable, "-c", "from seewhen.cli import main; main()", *arguments]
    process = subprocess.Popen(
        start, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    until = time.monotonic() + 300
    while process.poll() is None and not any((tmp_path / "tried").glob("runs/*/timing.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.005)
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    before = samples(tmp_path / "tried")
    assert process.returncode in (-number, 130, 0)  # a fast machine may have been done
    if process.returncode == 130:
        assert "Run the same command again to go on." in err

    assert run(*arguments).code == 0
    after = samples(tmp_path / "tried")
    for name, records in before.items():
        assert records.items() <= after[name].items()
    arguments[arguments.index(str(tmp_path / "tried"))] = str(tmp_path / "undisturbed")
    assert run(*arguments).code == 0
    assert samples(tmp_path / "undisturbed") == after


def test_pictures_and_methods_may_be_added(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    scenes(tmp_path / "photos", 2)
    assert run(*tiny(checkpoint, tmp_path)).code == 0
    before = samples(tmp_path / "tried")
    scenes(tmp_path / "photos", 3)
    ran = run(*tiny(checkpoint, tmp_path, "--methods", "cai:start_layer=1,regular", "--json"))
    assert ran.code == 0 and len(ran.json["pictures"]) == 3
    assert [method["method"] for method in ran.json["methods"]] == ["regular", "cai:start_layer=1"]
    after = samples(tmp_path / "tried")
    assert before["regular"].items() < after["regular"].items() and after["min-p"] == before["min-p"]
    assert len(after["regular"]) == len(after["cai:start_layer=1"]) == 3


def test_a_method_that_cannot_be_used_is_left_out(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    scenes(tmp_path / "photos", 1)
    ran = run(*tiny(checkpoint, tmp_path, "--methods", "min-p,saliency", "--json"))
    assert ran.code == 0 and [method["method"] for method in ran.json["methods"]] == ["regular", "min-p"]
    assert any("saliency" in sentence and "left out" in sentence for sentence in ran.json["summary"])


def test_few_pictures_have_no_interval(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    scenes(tmp_path / "photos", 2)
    ran = run(*tiny(checkpoint, tmp_path))
    assert ran.code == 0 and "any difference may be chance" in ran.out


def test_in_python(checkpoint: Path, tmp_path: Path) -> None:
    scenes(tmp_path / "photos", 1)
    tried = seewhen.try_methods(
        str(checkpoint), tmp_path / "photos", "regular", out=tmp_path / "tried", max_new_tokens=4, words=0
    )
    assert tried.page.is_file() and tried.summary[0].startswith("Only regular") and len(repr(tried)) < 300


def test_the_page_is_opened(run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is asked not to be, or everything is printed as JSON."""
    scenes(tmp_path / "photos", 1)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    for more in (("--no-open",), ("--json",), ("--open",)):
        assert opened == []
        assert run(*tiny(checkpoint, tmp_path, *more)).code == 0
    assert opened == [(tmp_path / "tried" / "index.html").as_uri()]


def test_a_picture_of_a_list_that_is_missing(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    scenes(tmp_path / "photos", 1)
    (tmp_path / "photos" / "list.txt").write_text("0.png\ngone.png\n")
    arguments = tiny(checkpoint, tmp_path)
    arguments[2] += "/list.txt"
    ran = run(*arguments)
    assert ran.code == 0 and "skipped: gone.png: there is no such file" in ran.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere",), "no file or folder nowhere"),
        ((".", "--temperature", "0.5"), "--do-sample"),
        ((".", "--do-sample", "--temperature", "0"), "temperature 0.0 is out of range"),
        ((".", "--methods", "nothing"), "nothing"),
        ((".", "--objects", "nowhere.json"), "nowhere.json"),
        ((".", "-q", " "), "empty"),
        ((".",), "There is no picture"),
        ((BAD,), "Not one of 1 pictures can be read"),
    ],
)
def test_what_is_refused(
    run: Run,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments == (BAD,):
        Path(BAD).write_text("not a picture")
    ran = run("try", checkpoint, *arguments, "--no-open")
    assert ran.code == 2 and ran.err.splitlines()[-1].startswith("error: ") and told in ran.err
