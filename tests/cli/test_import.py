"""`seewhen --help` must not wait for torch."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "transformers", "numpy", "scipy", "PIL", "tokenizers", "matplotlib", "fastapi", "ray")


def test_the_command_line_imports_nothing_heavy() -> None:
    code = f"import sys, seewhen.cli; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
