"""The study's list of runs: what comes first, who takes what, what becomes of those that fail or are stopped."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from photographs import settings, study, wanted


def test_greedy_runs_come_before_sampled_and_the_main_methods_before_the_others(tmp_path: Path) -> None:
    todo = wanted.in_order(list(wanted.NAMES), wanted.asks(tmp_path), greedy=False)
    assert len(todo) == len({w.file for w in todo}) == 7 * len(wanted.NAMES)
    half, main = 3 * len(wanted.NAMES), 3 * len(wanted.MAIN)
    assert not any(w.ask.sampled for w in todo[:half]) and all(w.ask.sampled for w in todo[half:])
    assert {w.method for w in todo[:main]} == set(wanted.MAIN)
    assert {w.method for w in todo[half : half + 2 * main // 3]} == set(wanted.MAIN)
    last = todo[-2 * len(wanted.NAMES) :]
    assert {w.ask.style for w in last[: len(wanted.NAMES)]} == {"plain-128"}
    assert {str(w).partition(" ")[2] for w in last[len(wanted.NAMES) :]} == {"pope 5 seeds all"}
    assert [str(w) for w in todo[:8:7]] == ["regular chair plain-64 greedy", "regular pope greedy"]
    few = wanted.in_order(["opera", "cai"], wanted.asks(tmp_path), greedy=True)
    assert [w.method for w in few] == ["cai"] * 3 + ["opera"] * 3


def test_every_setting_is_a_method_with_another_fingerprint(tmp_path: Path) -> None:
    for name, tried in settings.TRIED.items():
        assert len(tried) == 4, name
        assert len({wanted.make(name, tmp_path, setting).fingerprint for setting in tried}) == 4, name
    ablated = [wanted.make("cai", tmp_path, setting).fingerprint for _, setting in settings.ABLATIONS]
    assert len(set(ablated)) == len(ablated) > 20


def test_trials_are_about_validation_photographs_alone(tmp_path: Path) -> None:
    tried = wanted.trials(tmp_path, list(wanted.NAMES)) + wanted.ablation_trials(tmp_path)
    assert {w.ask.data for w in tried} == {str(tmp_path / "exam" / "validation")}
    assert {w.ask.data for w in wanted.in_order(["cai"], wanted.asks(tmp_path), False)} == {
        str(tmp_path / "exam" / "test")
    }
    assert len({w.file for w in tried}) > 140  # cai's own settings are among its ablations


def test_the_best_setting_that_keeps_recall_is_chosen(tmp_path: Path) -> None:
    tried = wanted.trials(tmp_path, ["pai", "vcd", "icd"])
    values = {  # accuracy, CHAIR_i, recall
        "regular": [(80, 30, 50)],
        "pai": [(80, 30, 50), (81, 28, 49), (90, 10, 46.9), (80, 26, 47)],  # the third says little
        "vcd": [(80, 30, 20)] * 4,
    }
    found: dict[wanted.Wanted, dict[str, float]] = {}
    for name, rows in values.items():
        mine = [w for w in tried if w.method == name]
        for (told, asked), (accuracy, chair, recall) in zip(
            zip(mine[::2], mine[1::2], strict=True), rows, strict=True
        ):
            found[told] = {"chair_i": chair, "recall": recall}
            found[asked] = {"accuracy": accuracy, "recall": 99.0}
    assert wanted.choose(tried, found) == {"pai": settings.TRIED["pai"][3]}


def test_what_was_chosen_is_asked_about_test_photographs_unless_it_is_published(tmp_path: Path) -> None:
    tilts = [w for w in wanted.ablation_trials(tmp_path) if json.loads(w.setting or "")["contrast"] == 1.0]
    exponential = next(w for w in tilts if "exponential" in (w.setting or ""))
    found = {
        w: {"accuracy": 80.0, "chair_i": 20.0 if w.setting == exponential.setting else 30.0, "recall": 50.0}
        for w in tilts
    }
    chosen = wanted.choose(tilts, found)
    assert chosen == {"cai-attention": json.loads(exponential.setting or "")}
    (tmp_path / "tuned.json").write_text(json.dumps({**chosen, "pai": {}, "vcd": {"alpha": 0.25}}))
    runs = wanted.tuned_runs(tmp_path)
    assert [w.method for w in runs] == ["cai-attention", "vcd"] * 4 and {w.folder for w in runs} == {"tuned"}
    assert {w.ask.data for w in runs} == {str(tmp_path / "exam" / "test")}
    made = wanted.make(runs[0].method, tmp_path, json.loads(runs[0].setting or ""))
    assert made == wanted.make("cai", tmp_path, {"contrast": 1.0, "tilt": "exponential"})


def test_each_run_is_taken_once_and_what_fails_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = wanted.in_order(["regular", "cai", "pai"], wanted.asks(tmp_path), greedy=True)
    taken: list[str] = []

    def answered(one: wanted.Wanted, run: Path) -> str:
        with study.locked(tmp_path / f"{one.file}.lock", wait=False) as free:
            assert not free  # while it is being answered, nobody else can take it
        taken.append(one.file)
        if one.method == "cai":
            raise RuntimeError("device-side assert")
        return "{}"

    monkeypatch.setattr(study, "answer", answered)
    with study.locked(tmp_path / f"{todo[0].file}.lock", wait=False):  # another process has this one
        for _ in range(3):  # a fresh process each time
            with pytest.raises(SystemExit):
                study.work(todo, tmp_path, tmp_path)
        study.work(todo, tmp_path, tmp_path)
    assert sorted(taken) == sorted(w.file for w in todo[1:])
    assert "device-side assert" in (tmp_path / f"{todo[1].file}.failed").read_text()
    study.work(todo, tmp_path, tmp_path)
    assert taken[-1] == todo[0].file and len(taken) == len(todo)


def test_processes_that_fail_are_replaced_and_all_are_stopped_in_time(tmp_path: Path) -> None:
    """Each process notes itself; the first to come fails, the others would run for ever."""
    code = (
        "import os, pathlib, sys, time\n"
        f"place = pathlib.Path({str(tmp_path)!r})\n"
        "(place / f'{os.getpid()}.started').touch()\n"
        "try: (place / 'first').mkdir()\n"
        "except FileExistsError: time.sleep(600)\n"
        "sys.exit(1)\n"
    )
    began = time.monotonic()
    study.supervise([sys.executable, "-c", code], 2, 4.0, tmp_path, dict(os.environ))
    started = [int(path.stem) for path in tmp_path.glob("*.started")]
    assert len(started) == 3 and time.monotonic() - began < 60
    for process in started:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_marks_belong_to_a_model_and_what_it_is_asked(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    seen: list[Any] = [study.fingerprint(tmp_path, None), study.fingerprint(tmp_path, 5)]
    (tmp_path / "model" / "config.json").write_text('{"a": 1}')
    seen.append(study.fingerprint(tmp_path, None))
    assert len(set(seen)) == 3
