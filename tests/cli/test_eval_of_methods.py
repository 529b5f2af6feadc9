"""`seewhen eval` and `seewhen sweep` of methods that need the tokenizer before anything is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.command import in_process
from runs.tiny_checkpoint import write
from seewhen.cli.options import LoadingFlags
from seewhen.cli.run_flags import AskFlags, ServedRunFlags, ask_of, captured
from seewhen.runs.evaluate import Ask


@pytest.mark.parametrize("method", ["confirm:coco", "icd"])
@pytest.mark.slow
def test_methods_that_read_words_are_evaluated(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny").mkdir()
    model = write(tmp_path / "tiny")
    flags = ("--scenes", 1, "--limit", 1, "--batch", 1, "--max-new-tokens", 4, "--out", tmp_path / "runs")
    ran = in_process(monkeypatch, capsys)("eval", "chair", "--method", method, "--model", model, *flags)
    assert ran.code == 0, ran.err
    found = sorted(path.name.split("_")[3] for path in (tmp_path / "runs").iterdir())
    assert found == sorted([method.replace(":", "-"), "min-p", "regular"]), "with its controls"


@pytest.mark.parametrize(("method", "grid"), [("confirm:coco", "threshold=0,1"), ("icd", "alpha=0.5,1")])
def test_methods_that_read_words_are_swept(
    method: str, grid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny").mkdir()
    model = write(tmp_path / "tiny")
    flags = ("--scenes", 2, "--batch", 2, "--max-new-tokens", 4, "--out", tmp_path / "sweep", "--grid", grid)
    ran = in_process(monkeypatch, capsys)("sweep", "chair", "--method", method, "--model", model, *flags)
    assert ran.code == 0, ran.err
    assert (tmp_path / "sweep" / "sweep.json").is_file()


def test_json_of_several_benchmarks_is_one_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluated(ask: Ask, *_: object) -> list[dict[str, object]]:
        return [{"method": "regular", "run": ask.benchmark, "result": {"metrics": {}}}]

    monkeypatch.setattr("seewhen.cli.eval._evaluate", evaluated)
    ran = in_process(monkeypatch, capsys)("eval", "pope,chair", "--scenes", 1, "--json")
    assert ran.code == 0, ran.err
    assert [entry["run"] for entry in json.loads(ran.out)] == ["pope", "chair"]


@pytest.mark.parametrize(
    ("device", "flag", "expected"),
    [("cuda:0", None, True), ("cuda:0", False, False), ("cpu", None, False), ("cpu", True, True)],
)
def test_captured_decoding_is_the_default_on_a_gpu(
    device: str, flag: bool | None, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LoadingFlags, "loading", lambda self: {})  # there is no GPU to be found here
    asked, model = AskFlags(fast=flag), ServedRunFlags(device=device)
    assert captured(ask_of("pope", asked, model), asked, model).fast is expected
