"""`seewhen try --server`: what a served model says of somebody's own pictures is what the same model says here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import seewhen
from cli.command import Ran
from seewhen.scenes import dataset, render
from served.fault_server import faulty, sees
from server.loopback import MODEL, Running, running

KEY = "sk-very-secret-0123456789"
METHODS = "regular,confirm:coco:verdict=asking"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(seewhen.load("packaged", device="cpu"), method="regular", key=KEY) as started:
        yield started


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SERVED_KEY", KEY)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in (2, 3):  # of the second a sentence is taken back
        render(dataset("shifted", 4)[number]).save(folder / f"{number}.png")
    (folder / "broken.png").write_text("not a picture")
    return folder


def flags(url: str, out: Path, *more: object) -> list[object]:
    return ["--out", out, "--lexicon", "coco", "--no-open", "--server", url, *more]


@pytest.mark.slow
def test_it_says_what_the_local_model_says(
    call: Callable[..., Ran], server: Running, photos: Path, tmp_path: Path
) -> None:
    asked = ["-n", "64", "--methods", METHODS, "--json"]
    line = flags(server.url, tmp_path / "there", *asked, "--served-model", MODEL, "--key-from", "SERVED_KEY")
    there = call("try", photos, *line)
    local = ["--verdict", "asking", "--words", 0, "--lexicon", "coco", "--no-open", "--device", "cpu", *asked]
    here = call("try", "packaged", photos, "--out", tmp_path / "here", *local)
    assert there.code == here.code == 0, there.err + here.err
    assert there.json["server"] == f"{server.url}/v1" and "server" not in here.json
    assert list(there.json["skipped"]) == list(here.json["skipped"]) == ["broken.png"]
    one, other = ({p["name"]: p for p in ran.json["pictures"]} for ran in (there, here))
    assert one.keys() == other.keys() == {"2.png", "3.png"}
    for name, picture in one.items():
        assert picture["answers"] == other[name]["answers"] and picture["denied"] == other[name]["denied"]
        same = zip(picture["objects"], other[name]["objects"], strict=True)
        for object_there, object_here in same:
            assert object_there["verdict"] == object_here["verdict"]
            assert object_there["odds"] == pytest.approx(object_here["odds"], abs=1e-3)
            assert object_there["entropy"] is None
    methods = [ran.json["methods"] for ran in (there, here)]
    for served, loaded in zip(*methods, strict=True):
        assert served["counts"] == loaded["counts"] and served["cost"]["ms_per_token"] is None
        assert served["cost"]["taken_back"] == loaded["cost"]["taken_back"]
        assert served["cost"]["served"]["completion_tokens"] > 0 and loaded["cost"]["served"] is None
    assert methods[0][1]["cost"]["taken_back"] and methods[0][1]["cost"]["served"]["requests"] > 6
    files = [file for file in (tmp_path / "there").rglob("*") if file.is_file()]
    assert len(files) > 5 and not any(KEY in file.read_text() for file in files)
    page = (tmp_path / "there" / "index.html").read_text()
    assert "prompt tokens" in page and "ms per token" not in page and "with doubt" not in page


def test_nothing_is_asked_twice(call: Callable[..., Ran], server: Running, photos: Path, tmp_path: Path) -> None:
    """What is there needs no server: the second command names an address where none is."""
    known = [MODEL, photos, "-n", "8", "--key-from", "SERVED_KEY", "--served-model", MODEL, "--json"]
    first = call("try", *flags(server.url, tmp_path / "tried", *known))
    assert first.code == 0, first.err
    assert [each["method"] for each in first.json["methods"]] == ["regular", "confirm"]
    again = call("try", *flags("http://127.0.0.1:1", tmp_path / "tried", *known))
    assert again.code == 0, again.err
    assert again.json["pictures"] == first.json["pictures"]


def test_in_python(server: Running, photos: Path, tmp_path: Path) -> None:
    model = seewhen.remote(server.url, MODEL, key_from="SERVED_KEY", at_once=3)
    tried = seewhen.try_methods(model, photos, out=tmp_path / "tried", max_new_tokens=8, seed=1)
    model.close()
    assert [method.label for method in tried.outcome.methods] == ["regular", "confirm"]
    assert tried.outcome.tries.trial.ask.at_once == 3 and tried.outcome.pictures[0].asked
    assert not (tmp_path / "tried" / "words").exists()


def test_a_server_that_cannot_be_asked(call: Callable[..., Ran], photos: Path, tmp_path: Path) -> None:
    """Without log-probabilities there are answers, and it is said what is not known."""
    with faulty(sees) as other:
        line = flags(other.url, tmp_path / "tried", "--served-model", "any")
        ran = call("try", photos, *line, "--json", "--methods", "confirm,cai")
        assert ran.code == 0, ran.err
    assert [each["method"] for each in ran.json["methods"]] == ["regular"]
    told = " ".join(ran.json["summary"])
    assert "confirm is left out" in told and "no log-probabilities" in told
    assert "cai is left out" in told and "was not asked about what it named" in told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--served-model", "any", "--device", "cpu"], "--device"),
        (["--served-model", "any", "--batch", "4"], "--batch"),
        (["--served-model", "any", "--words", "1"], "--words"),
        ([], "--served-model"),
        (["--served-model", "any", "--key-from", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
    ],
)
def test_what_is_refused(
    call: Callable[..., Ran], photos: Path, tmp_path: Path, line: list[Any], said: str
) -> None:
    with faulty(sees) as other:
        ran = call("try", photos, *flags(other.url, tmp_path / "tried", *line))
        assert ran.code == 2 and said in ran.err and not other.asked
    assert not (tmp_path / "tried").exists()


def test_what_is_missing_is_told(call: Callable[..., Ran], photos: Path) -> None:
    for line, said in (([photos], "No model is named"), (["packaged"], "no picture"), ([MODEL, photos], MODEL)):
        ran = call("try", *line, "--no-open", "--at-once", 16)
        assert ran.code == 2 and said in ran.err
    assert call("try", "packaged", photos, "--at-once", 2).code == 2


def test_a_run_is_told_all_of_a_served_model(server: Running, tmp_path: Path, monkeypatch: Any) -> None:
    from seewhen.runs.evaluate import Ask, evaluate

    monkeypatch.setenv("SERVED_KEY", KEY)
    model = seewhen.remote(server.url, MODEL, key_from="SERVED_KEY", options={"user": "me"}, at_once=2)
    ask = Ask("chair", split="test", scenes=1, max_new_tokens=6, **model.for_runs())
    path, result = evaluate(ask, seewhen.method("regular"), tmp_path)
    (line,) = map(json.loads, (path / "samples.jsonl").read_text().splitlines())
    assert line["answer"] and result["cost"]["requests"] == 1
    manifest = (path / "manifest.json").read_text()
    assert json.loads(manifest)["config"]["model"]["request"] == {"user": "me"} and KEY not in manifest
    model.close()
