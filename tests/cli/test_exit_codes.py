"""How the command begins and ends: threads that wait sleep; 2 for what is wrong, 130 for Ctrl-C, no traceback."""

from __future__ import annotations

import os

import pytest

from cli.command import in_process
from seewhen import cli
from seewhen.runs.engine import Interrupted


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (Interrupted("Stopped with 3 of 9.", "Go on."), 130, "error: Stopped with 3 of 9. Go on.\n"),
        (OSError(28, "No space left on device", "a.json"), 2, "error: a.json: No space left on device. "),
    ],
)
def test_how_it_ends(
    raised: BaseException,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def app() -> None:
        raise raised

    monkeypatch.setattr(cli, "app", app)
    ran = in_process(monkeypatch, capsys)("methods")
    assert ran.code == code and ran.err.startswith(told) and "Traceback" not in ran.err


@pytest.mark.parametrize(("given", "kept"), [(None, "passive"), ("active", "active")])
def test_waiting_threads_sleep_unless_the_user_says_otherwise(
    given: str | None, kept: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    assert in_process(monkeypatch, capsys)("methods").code == 0
    assert os.environ["OMP_WAIT_POLICY"] == kept
