"""The flags of served models: what goes along with requests, what is refused, what is part of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import seewhen
from cli.command import Ran
from seewhen.errors import InvalidInput
from seewhen.runs.evaluate import Ask, evaluate
from seewhen.served.extras import extras_of
from served.fault_server import Handler, completion, drops, faulty, says, sees

TEXT = "A dog."
EXTRA = ["--request", "add_special_tokens=true", "--request", "user=me"]
ADDED = {"add_special_tokens": True, "user": "me"}


def tells(handler: Handler) -> None:
    """As `sees`, with log-probabilities."""
    likely = [{"token": "Yes", "logprob": -0.1}, {"token": "No", "logprob": -2.4}]
    content = [{"token": "Yes", "logprob": -0.1, "top_logprobs": likely}]
    reply = completion("Yes", logprobs={"content": content})
    reply["usage"]["prompt_tokens"] += 90 * json.dumps(handler.body).count("image_url")
    handler.reply(json.dumps(reply).encode())


def served(url: str) -> list[str]:
    return ["--server", url, "--served-model", "any"]


def test_values_are_json_or_text() -> None:
    pairs = ["a=true", "b=1.5", 'c={"d": [1]}', "e=plain text", "f=", 'g="7"']
    expected = {"a": True, "b": 1.5, "c": {"d": [1]}, "e": "plain text", "f": "", "g": "7"}
    assert extras_of(pairs) == expected


@pytest.mark.parametrize(
    "pair", ["alone", "=1", "model=x", "messages=[]", "logprobs=false", "n=2", "logit_bias={}", "a=NaN"]
)
def test_what_cannot_be_added(pair: str) -> None:
    with pytest.raises(InvalidInput):
        extras_of([pair])
    name = pair.partition("=")[0]
    if name in ("model", "messages", "logprobs", "n"):
        with pytest.raises(InvalidInput, match=name):
            seewhen.remote("http://127.0.0.1:1", "any", options={name: 1})


@pytest.mark.parametrize("command", ["describe", "ask", "compare", "check", "eval", "try"])
def test_what_is_added_goes_along(call: Callable[..., Ran], picture: Path, tmp_path: Path, command: str) -> None:
    lines: Mapping[str, list[Any]] = {
        "describe": [picture, "--method", "regular"],
        "ask": [picture, "What is there?", "--method", "regular"],
        "compare": [picture, "--methods", "regular"],
        "check": [picture, TEXT],
        "eval": ["chair", "--scenes", "1", "--method", "regular", "--out", tmp_path / "runs"],
        "try": [picture, "--methods", "regular", "--out", tmp_path],
    }
    with faulty(tells) as server:
        found = call(command, *lines[command], "--json", *served(server.url), *EXTRA)
    assert found.code == 0, found.err
    assert server.asked and all({n: each[n] for n in ADDED} == ADDED for each in server.asked)
    if command in ("eval", "try"):
        for manifest in (tmp_path / "runs").rglob("manifest.json"):
            assert json.loads(manifest.read_text())["config"]["model"]["request"] == ADDED
    else:
        told = found.json["by"] if command == "check" else found.json
        assert told["request"] == ADDED and told["server"] == server.url


@pytest.mark.parametrize(
    "line",
    [
        "describe a.png --device cpu",
        "describe a.png --model photo",
        "describe a.png --trace there",
        "ask a.png Why? --dtype float32",
        "ask a.png Why? --trace there",
        "compare a.png --quantization 4bit",
        "compare a.png --trace there",
        "check a.png cat --revision main",
        "check a.png cat --adapter some",
        "eval pope --device cpu",
        "eval pope --batch 4",
        "eval pope --fast",
        "eval pope --seeds 2 --noise hash",
        "eval pope --engine ray",
        "eval pope --workers 2",
        "eval pope --model photo",
    ],
)
def test_what_would_do_nothing_is_refused(
    call: Callable[..., Ran], picture: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(picture.parent)
    picture.rename("a.png")
    with faulty(sees) as server:
        found = call(*line.split(), *served(server.url))
        assert not server.asked
    flag = next(word for word in reversed(line.split()) if word.startswith("--"))
    assert found.code == 2 and flag in found.err


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("check a.png cat --request a=1", "--request"),
        ("check a.png cat --key-from MY_KEY", "--key-from"),
        ("eval pope --at-once 3", "--at-once"),
        ("serve --request a=1", "--request"),
        ("serve --upstream http://127.0.0.1:1 --dtype float32", "--dtype"),
        ("serve --upstream http://127.0.0.1:1 --request n=2", "n"),
    ],
)
def test_flags_that_need_a_server_or_an_upstream(
    call: Callable[..., Ran], picture: Path, monkeypatch: pytest.MonkeyPatch, line: str, flag: str
) -> None:
    monkeypatch.chdir(picture.parent)
    picture.rename("a.png")
    found = call(*line.split())
    assert found.code == 2 and flag in found.err


def test_a_run_goes_on_at_another_address(tmp_path: Path) -> None:
    def asked(url: str, **more: Any) -> Ask:
        return Ask("chair", split="test", scenes=3, max_new_tokens=6, server=url, model="any", at_once=1, **more)

    probes, regular = 4, seewhen.method("regular")
    with (
        faulty(*[sees] * (probes + 2), says(b"gone", 401)) as old,
        pytest.raises(seewhen.SeewhenError, match="401"),
    ):
        evaluate(asked(old.url), regular, tmp_path)
    with faulty(sees) as new:
        path, result = evaluate(asked(new.url), regular, tmp_path)
        assert len(new.asked) == probes + 1 and result["failures"] == 0
        other, _ = evaluate(asked(new.url, request={"user": "me"}), regular, tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["environment"]["server"] == old.url and old.url not in json.dumps(manifest["config"])
    assert other != path  # what goes along may change answers


def test_a_checked_file_goes_on_at_another_address(
    call: Callable[..., Ran], picture: Path, tmp_path: Path
) -> None:
    """And a server that fails ends it: its failure is not the verdict on the rest of the answers."""
    answers, out = tmp_path / "answers.jsonl", tmp_path / "checked.jsonl"
    answers.write_text("".join(json.dumps({"image": picture.name, "text": TEXT}) + "\n" for _ in range(3)))
    line = ["check", "--answers", answers, "--out", out]
    with faulty(tells) as counting:
        assert call("check", picture, TEXT, *served(counting.url)).code == 0
    probes = len(counting.asked) - 1
    with faulty(*[tells] * (probes + 1), says(b"gone", 401)) as old:
        assert call(*line, *served(old.url)).code == 2
    assert len(out.read_text().splitlines()) == 1
    with faulty(tells) as new:
        found = call(*line, *served(new.url))
    assert found.code == 0, found.err
    lines = [json.loads(each) for each in out.read_text().splitlines()]
    assert len(lines) == 3 and not any("error" in each for each in lines)
    assert len(new.asked) == probes + 2


def test_a_server_that_drops_everything_is_told_once(
    call: Callable[..., Ran], picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seewhen.served.server._wait", lambda number, cause: 0.0)
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps({"image": picture.name, "text": TEXT}) + "\n" for _ in range(3)))
    with faulty(drops) as server:
        found = call("check", "--answers", answers, *served(server.url))
    assert found.code == 2 and found.out == "" and found.err.count("broke off") == 1
