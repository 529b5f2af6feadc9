"""The study's list of runs: what comes first, who takes what, what becomes of those that fail or are stopped."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from photographs import study


def test_the_main_methods_come_first_and_greedy_before_sampled(tmp_path: Path) -> None:
    todo = study.in_order(list(study.NAMES), study.asks(tmp_path), greedy=False)
    assert len(todo) == len({wanted.file for wanted in todo}) == 6 * len(study.NAMES)
    main = 3 * len(study.MAIN)
    assert {w.method for w in todo[: 2 * main]} == set(study.MAIN)
    assert not any(w.ask.sampled for w in todo[:main]) and all(w.ask.sampled for w in todo[main : 2 * main])
    assert [str(w) for w in todo[:8:7]] == ["regular chair plain-64 greedy", "regular pope greedy"]
    few = study.in_order(["opera", "cai"], study.asks(tmp_path), greedy=True)
    assert [w.method for w in few] == ["cai"] * 3 + ["opera"] * 3


def test_each_run_is_taken_once_and_what_fails_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = study.in_order(["regular", "cai", "pai"], study.asks(tmp_path), greedy=True)
    taken: list[str] = []

    def answered(wanted: study.Wanted, run: Path) -> None:
        with study.locked(tmp_path / f"{wanted.file}.lock", wait=False) as free:
            assert not free  # while it is being answered, nobody else can take it
        taken.append(wanted.file)
        if wanted.method == "cai":
            raise RuntimeError("device-side assert")

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


def test_marks_belong_to_a_model_and_its_parameters(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    seen: list[Any] = [study.fingerprint(tmp_path, None), study.fingerprint(tmp_path, 5)]
    (tmp_path / "tuned.json").write_text(json.dumps({"cai": {"contrast": 1.5}}))
    seen.append(study.fingerprint(tmp_path, None))
    (tmp_path / "model" / "config.json").write_text('{"a": 1}')
    seen.append(study.fingerprint(tmp_path, None))
    assert len(set(seen)) == 4
