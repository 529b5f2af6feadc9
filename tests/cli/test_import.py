"""`seewhen --help` must not wait for torch."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "numpy", "scipy", "PIL", "tokenizers", "matplotlib", "fastapi", "ray")


def test_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, seewhen.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_needs_no_model_is_told_without_torch() -> None:
    """What is asked for in a moment is answered in a moment: the list of methods, one of them, the version."""
    code = """
import sys
from seewhen.cli import main
for command in (["methods"], ["methods", "cai"], ["methods", "--json"], ["--version"]):
    sys.argv = ["seewhen", *command]
    try:
        main()
    except SystemExit as done:
        assert not done.code
print([name for name in ("torch", "transformers", "numpy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
