"""How the command begins and ends: threads that wait sleep; 2 for what is wrong, 130 for Ctrl-C, no traceback."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import in_process
from runs.tiny_checkpoint import write
from seewhen import cli
from seewhen.runs.engine import Interrupted


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (Interrupted("Stopped with 3 of 9.", "Go on."), 130, "error: Stopped with 3 of 9. Go on.\n"),
        (OSError(13, "Permission denied", "a.json"), 2, "error: a.json: Permission denied. --debug shows where."),
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


def _on_a_full_disk(command: list[str], folder: Path, said: Path) -> None:
    """What the command does where no file may grow beyond this: writing fails as it does on a full disk."""
    with said.open("wb") as file:
        os.dup2(file.fileno(), 2)
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  not the test's own
    # Python keeps bytecode of which only a part could be written, and every later import of that module fails.
    sys.dont_write_bytecode = True
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    os.chdir(folder)
    sys.argv = ["seewhen", *command]
    cli.main()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("scenes render --n 2 --out out", "out/test_0_000000.png: File too large. Make room"),  # Pillow writes
        (
            "describe scene.png --model model -n 8 --trace out/trace",
            "out/trace cannot be written: File too large.",
        ),
        (
            "eval pope --model model --scenes 3 --no-controls --method regular --out out",
            "File too large. Make room",
        ),
    ],
)
def test_a_full_disk_is_told_in_a_line(command: str, told: str, tmp_path: Path) -> None:
    """What fails in the middle of a write names no file; nothing half written stays under its name."""
    from seewhen.scenes import render, sample

    write(tmp_path / "model")
    render(sample("test", 0)).save(tmp_path / "scene.png")
    said = tmp_path / "stderr"
    # Forked, so that nothing is imported again.
    run = multiprocessing.get_context("fork").Process(
        target=_on_a_full_disk, args=(command.split(), tmp_path, said)
    )
    run.start()
    run.join()
    assert run.exitcode == 2
    lines = said.read_text(encoding="utf-8").splitlines()
    assert f"error: {told}" in lines[-1] and "Traceback" not in "".join(lines)
    assert [path.name for path in tmp_path.rglob(".trace*")] == []


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_letter_that_the_terminal_has_not_is_no_crash(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, scene: Path, encoding: str
) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    text = "A dog \u2713 beside a caf\u00e9."
    monkeypatch.setattr(sys, "argv", ["seewhen", "check", str(scene), text, "--model", str(checkpoint), "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    sys.stdout.flush()
    printed = written.getvalue().decode("utf-8" if encoding == "ascii" else encoding)  # click takes no ascii
    assert not end.value.code and json.loads(printed)["text"] == text


def test_json_is_utf8_or_escaped_whatever_stdout_is(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, scene: Path
) -> None:
    """A pipe on Windows has the country's encoding, and whoever reads JSON takes it for UTF-8."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "cp1252"))
    text = "A dog \U0001f600 beside a caf\u00e9."
    monkeypatch.setattr(sys, "argv", ["seewhen", "check", str(scene), text, "--model", str(checkpoint), "--json"])
    with pytest.raises(SystemExit):
        cli.main()
    sys.stdout.flush()
    assert json.loads(written.getvalue())["text"] == text


@pytest.mark.parametrize(
    ("command", "closed", "code"),
    [
        ("--version", ">&-", 0),
        ("methods", ">&-", 0),
        ("methods", "2>&-", 0),
        ("describe nowhere.png", "2>&-", 2),
        ("describe nowhere.png", "<&- >&- 2>&-", 2),
    ],
)
def test_nobody_has_to_read_what_is_said(command: str, closed: str, code: int, tmp_path: Path) -> None:
    """Started with its streams closed, as some schedulers do, a command ends as ever."""
    line = f'"$0" -m seewhen {command} {closed}'
    done = subprocess.run(
        ["sh", "-c", line, sys.executable], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr if "2>" not in closed else "") == (code, "")
