"""Served runs that are stopped, killed, or answered with nonsense: nothing hangs, is lost or comes twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import seewhen
from cli.command import Ran
from seewhen.runs.evaluate import Ask, evaluate
from served.fault_server import Faulty, Handler, faulty, hangs, says, sees
from server.loopback import until

PROBES = 4  # requests that find out what the server offers
SECRET = "sk-very-secret-0123456789"


def asked(url: str, **more: Any) -> Ask:
    return Ask("chair", split="test", server=url, model="any", **{"scenes": 3, "max_new_tokens": 6, **more})


def lines(folder: Path) -> list[dict[str, Any]]:
    (file,) = folder.rglob("samples.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def line(url: str, out: Path) -> list[str]:
    """A run of 8 answers, 2 at once."""
    words = f"eval chair --split test --scenes 8 --max-new-tokens 6 --method regular --no-controls --out {out}"
    return [*words.split(), *f"--server {url} --served-model any --at-once 2".split()]


@contextmanager
def command(url: str, out: Path) -> Iterator[subprocess.Popen[str]]:
    """The run in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "seewhen", *line(url, out)],
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], server: Faulty) -> None:
    """Fails with what the process says, where it ends before the server is asked for answers it holds back."""
    until(lambda: len(server.asked) >= PROBES + 5 or process.poll() is not None, 300)
    assert process.poll() is None, process.communicate()[1]


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it(tmp_path: Path) -> None:
    with faulty(*[sees] * (PROBES + 3), hangs) as server, command(server.url, tmp_path) as process:
        ended(process, server)
        for pause in (3, 45, 45):  # two signals at a time count as one, so there is a third in reserve
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(pause)
            if process.poll() is not None:
                break
        assert process.poll() == 130
    assert len(lines(tmp_path)) == 3


@pytest.mark.slow
def test_a_killed_run_goes_on(tmp_path: Path, call: Callable[..., Ran]) -> None:
    with faulty(*[sees] * (PROBES + 3), hangs) as server:
        with command(server.url, tmp_path) as process:
            ended(process, server)
            process.kill()  # which it cannot know of
            process.wait(60)
        kept = lines(tmp_path)
        assert len(kept) == 3
        server.faults[:] = [sees]
        before = len(server.asked)
        assert call(*line(server.url, tmp_path)).code == 0
        assert len(server.asked) - before == PROBES + 5
    after = lines(tmp_path)
    assert len(after) == len({each["id"] for each in after}) == 8
    assert all(each in after for each in kept)


def test_as_many_at_once_as_are_asked_for(tmp_path: Path) -> None:
    """The server answers when 20 wait for it, which is more than the 16 without being told."""
    together = threading.Barrier(20, timeout=100)

    def waits(handler: Handler) -> None:
        together.wait()
        sees(handler)

    with faulty(*[sees] * PROBES, waits) as server:
        _, result = evaluate(asked(server.url, scenes=20, at_once=20), seewhen.method("regular"), tmp_path)
    assert result["failures"] == 0 and not together.broken


def test_one_unreadable_answer_is_one_failure(tmp_path: Path) -> None:
    nonsense = says({"choices": [{"message": {"content": 5}}]})
    with faulty(*[sees] * (PROBES + 1), nonsense, nonsense, sees) as server:
        _, result = evaluate(asked(server.url, at_once=1), seewhen.method("regular"), tmp_path)
    assert result["failures"] == 1 and "content" in result["first_failure"]
    assert [bool(each.get("error")) for each in lines(tmp_path)] == [False, True, False]


def test_a_key_that_comes_back_is_in_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    escaped = SECRET.replace("-", "\\u002d")
    echo = says(f'{{"error": "{escaped} is not worth it", "again": "{SECRET}"}}'.encode(), 422)
    with faulty(*[sees] * PROBES, echo, sees) as server:
        path, result = evaluate(asked(server.url, at_once=1), seewhen.method("regular"), tmp_path)
    assert result["failures"] == 1 and "[key] is not worth it" in result["first_failure"]
    for file in path.iterdir():
        assert "very" not in file.read_text().replace("\\u002d", "-"), file
