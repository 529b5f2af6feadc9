"""Runs and commands with a served model: concurrent, resumable, counted, and no key in any file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import seewhen
from cli.command import Ran
from runs.tiny_checkpoint import write
from seewhen.errors import InvalidInput, SeewhenError, UnsupportedMode
from seewhen.runs.evaluate import Ask, evaluate
from seewhen.scenes import dataset, render
from served.fault_server import faulty, says, sees
from server.loopback import MODEL, Running, running

KEY = "sk-very-secret-0123456789"
TEXT = "A dog and two cats."


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    checkpoint = write(tmp_path_factory.mktemp("tiny"))
    with running(seewhen.load(checkpoint, device="cpu"), method="regular", key=KEY) as started:
        yield started


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVED_KEY", KEY)


def asked(url: str, benchmark: str = "chair", **more: Any) -> Ask:
    known: dict[str, Any] = {"scenes": 3, "max_new_tokens": 6, "model": MODEL, "key_from": "SERVED_KEY"}
    return Ask(benchmark, split="test", server=url, **{**known, **more})


def flags(server: Running) -> list[str]:
    return ["--server", server.url, "--served-model", MODEL, "--key-from", "SERVED_KEY"]


def test_a_run_is_that_of_single_answers(server: Running, tmp_path: Path) -> None:
    path, result = evaluate(asked(server.url), seewhen.method("regular"), tmp_path)
    lines = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    model = seewhen.remote(server.url, MODEL, key_from="SERVED_KEY")
    prompt = json.loads((path / "manifest.json").read_text())["config"]["benchmark"]["first_prompt"]
    for number, line in enumerate(lines):
        expected = model.generate(render(dataset("test", 3)[number]), prompt, max_new_tokens=6)
        assert line["answer"] == expected.text
    model.close()
    assert len(lines) == 3 and result["failures"] == 0
    assert result["cost"]["requests"] == 3 and result["cost"]["completion_tokens"] == sum(
        e["tokens"] for e in lines
    )
    assert result["cost"]["prompt_tokens"] > 0
    assert not any(KEY in file.read_text() for file in path.iterdir())


def test_a_run_goes_on_where_a_server_failed(server: Running, tmp_path: Path) -> None:
    """A server that dies in the middle: what it answered is kept, nothing is asked or counted twice."""
    with faulty(*[sees] * 6, says(b"gone", 401)) as failing:
        ask = asked(failing.url, scenes=8, at_once=2)
        with pytest.raises(SeewhenError, match="401"):
            evaluate(ask, seewhen.method("regular"), tmp_path)
        (path,) = tmp_path.iterdir()
        kept = (path / "samples.jsonl").read_text().splitlines()
        assert 0 < len(kept) < 8
        failing.faults[:] = [sees]
        before = len(failing.asked)
        _, result = evaluate(ask, seewhen.method("regular"), tmp_path)
        probes = 4
        assert len(failing.asked) - before == 8 - len(kept) + probes
    after = (path / "samples.jsonl").read_text().splitlines()
    assert len(after) == len({json.loads(line)["id"] for line in after}) == 8
    assert set(kept) <= set(after) and result["cost"]["requests"] == 8


def test_one_refused_picture_is_one_failure(tmp_path: Path) -> None:
    with faulty(*[sees] * 5, says(b"this picture is too large", 413), sees) as server:
        _, result = evaluate(asked(server.url, at_once=1), seewhen.method("regular"), tmp_path)
    assert result["failures"] == 1 and "too large" in result["first_failure"]


def test_sampled_seeds_differ_and_repeat(server: Running, tmp_path: Path) -> None:
    ask = asked(server.url, seeds=2)
    (one, _), (two, _) = (evaluate(ask, seewhen.method("regular"), tmp_path / name) for name in "ab")
    texts = [(path / "samples.jsonl").read_text() for path in (one, two)]
    assert texts[0] == texts[1]
    said = [json.loads(line) for line in texts[0].splitlines()]
    assert len({(each["id"], each["answer"]) for each in said}) > 3


def test_what_a_server_cannot_run(server: Running, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedMode, match="inside the model"):
        evaluate(asked(server.url), seewhen.method("cai"), tmp_path)
    with pytest.raises(InvalidInput):
        evaluate(asked(server.url, at_once=0), seewhen.method("regular"), tmp_path)


def test_check_command(call: Callable[..., Ran], server: Running, picture: Path, tmp_path: Path) -> None:
    page = tmp_path / "checked.html"
    found = call("check", picture, TEXT, "--lexicon", "coco", "--json", "--html", page, *flags(server))
    assert found.code == 0, found.err
    assert [each["object"] for each in found.json["mentions"]] == ["dog", "cat"]
    assert found.json["by"]["server"] == server.url and found.json["by"]["model"] == MODEL
    assert KEY not in found.out + found.err + page.read_text()
    (tmp_path / "answers.jsonl").write_text(json.dumps({"image": picture.name, "text": TEXT}) + "\n")
    listed = call("check", "--answers", tmp_path / "answers.jsonl", "--lexicon", "coco", *flags(server))
    assert listed.code == 0 and json.loads(listed.out)["mentions"] == found.json["mentions"]


def test_describe_and_compare_commands(
    call: Callable[..., Ran], server: Running, picture: Path, tmp_path: Path
) -> None:
    page = tmp_path / "seen.html"
    short = ["-n", "6", *flags(server)]
    plain = call("describe", picture, "--method", "regular", *short)
    assert plain.code == 0 and plain.out.strip(), plain.err
    both = call("compare", picture, "--methods", "regular,confirm:coco", "--json", "--html", page, *short)
    assert both.code == 0, both.err
    assert [each["label"] for each in both.json["answers"]] == ["regular", "confirm:coco"]
    assert both.json["answers"][0]["text"] == plain.out.strip()
    assert both.json["answers"][1]["asked"] is not None and both.json["server"] == server.url
    assert KEY not in plain.out + plain.err + both.out + both.err + page.read_text()


def test_without_a_method_one_that_can_be_served(
    call: Callable[..., Ran], server: Running, picture: Path, tmp_path: Path
) -> None:
    short = ["--max-new-tokens", "6", "--json", *flags(server)]
    described = call("describe", picture, *short)
    asked = call("ask", picture, "What is there?", *short)
    compared = call("compare", picture, *short)
    for found, labels in ((described, ["confirm"]), (asked, ["confirm"]), (compared, ["regular", "confirm"])):
        assert found.code == 0, found.err
        assert [each["label"] for each in found.json["answers"]] == labels
    run = call("eval", "chair", "--split", "test", "--scenes", "1", "--out", tmp_path / "runs", *short)
    assert run.code == 0, run.err
    assert [each["method"] for each in run.json] == ["regular", "confirm"]


def test_eval_command(call: Callable[..., Ran], server: Running, tmp_path: Path) -> None:
    line = [
        "eval",
        "chair",
        "--split",
        "test",
        "--scenes",
        "2",
        "--max-new-tokens",
        "6",
        "--out",
        tmp_path / "runs",
    ]
    found = call(*line, "--method", "confirm:coco", "--json", "--at-once", "2", *flags(server))
    assert found.code == 0, found.err
    assert [each["method"] for each in found.json] == ["regular", "confirm:coco"]
    assert found.json[1]["result"]["cost"]["requests"] >= 2
    assert "asked" in found.json[1]["result"]["facts"]
    for file in (tmp_path / "runs").rglob("*.json*"):
        assert KEY not in file.read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["--server", "http://127.0.0.1:1"], "--served-model"),
        (["--served-model", "x"], "--server"),
        (["--server", "nowhere", "--served-model", "x"], "no address"),
        (["--server", "http://127.0.0.1:1", "--served-model", "x", "--key-from", "NO_SUCH_KEY"], "NO_SUCH_KEY"),
    ],
)
def test_flags_that_do_not_go(call: Callable[..., Ran], picture: Path, line: list[str], said: str) -> None:
    found = call("check", picture, TEXT, *line)
    assert found.code == 2 and said in found.err
