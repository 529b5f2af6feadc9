"""Ctrl-C ends every command with 130 and without a traceback."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from every import commands
from PIL import Image

COMMANDS = {
    "describe": "a.png",
    "ask": "a.png Why?",
    "check": "a.png cat",
    "compare": "a.png",
    "try": "packaged a.png --out tried --no-open",
    "demo": "--out out",
    "scenes render": "--out out",
    "methods": "",
    "models": "",
    "doctor": "",
    "diagnose": "packaged",
    "score": "pope --questions a.png --answers a.png",
    "data check": ".",
    "data get": "pope --to .",
    "eval": "pope --out out",
    "sweep": "pope --grid contrast=1 --out out",
    "report": ". --out out",
    "figure": "case --out a.pdf",
    "view": "a.json --out a.html",
    "calibrate confirm": "--out a",
    "calibrate vti": "--out b",
    "calibrate ict": "--out c",
    "bench": "",
    "serve": "--port 0",
}

# Runs commands one after the other and presses Ctrl-C when one imports something: the first thing after its
# arguments were read, or torch. Says of each how it ended.
_CODE = """
import builtins, contextlib, io, json, os, signal, sys
from seewhen.cli import main
imports = builtins.__import__
wanted, commands = json.load(sys.stdin)
def pressed(name, module=None, *rest, **options):
    if name == wanted or wanted == "first" and (module or {}).get("__name__", "").startswith("seewhen.cli."):
        builtins.__import__ = imports
        os.kill(os.getpid(), signal.SIGINT)
    return imports(name, module, *rest, **options)
ended = {}
for command in commands:
    sys.argv = ["seewhen", *command.split()]
    builtins.__import__ = pressed
    with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as error:
            ended[command] = (error.code, told.getvalue(), builtins.__import__ is imports)
print(json.dumps(ended))
"""


MODELS = [name for name, command in commands() if any(each.name == "model" for each in command.params)]


@functools.cache
def ended(when: str) -> dict[str, tuple[int, str, bool]]:
    """All commands, or those with a model, in one process, in a folder with a picture."""
    with tempfile.TemporaryDirectory() as folder:
        Image.new("RGB", (32, 32)).save(Path(folder, "a.png"))
        Path(folder, "a.json").write_text("{}")
        asked = [
            f"{name} {words}".strip() for name, words in COMMANDS.items() if when == "first" or name in MODELS
        ]
        done = subprocess.run(
            [sys.executable, "-c", _CODE],
            input=json.dumps([when, asked]),
            capture_output=True,
            text=True,
            cwd=folder,
            env=os.environ | {"HF_HUB_OFFLINE": "1"},
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_command_is_here() -> None:
    assert {name for name, _ in commands()} == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_ends_at_once(command: str) -> None:
    assert ended("first")[f"{command} {COMMANDS[command]}".strip()] == [130, "", True]


@pytest.mark.parametrize("command", [name for name in MODELS if name != "view"])  # which has nothing to load here
@pytest.mark.slow
def test_while_torch_is_awaited(command: str) -> None:
    code, told, pressed = ended("torch")[f"{command} {COMMANDS[command]}".strip()]
    assert (code, pressed) == (130, True)
    # Where the model for photographs is not installed, a picture put to the packaged one is warned about before.
    assert all(line.startswith("warning: ") for line in told.splitlines()), told


# A package whose import takes for ever, were it not for Ctrl-C.
_SLOW = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(600)\n"


@pytest.mark.parametrize("package", ["typer", "torch"])
def test_while_a_package_is_imported(package: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text(_SLOW)
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "seewhen", "describe", "a.png"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
