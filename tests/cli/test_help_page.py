"""docs/command-line.md says what `--help` says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_up_to_date() -> None:
    if not DOCS.is_dir():
        pytest.skip("the documentation is not part of this installation")
    code = "import command_line; print(command_line.page(), end='')"
    done = subprocess.run([sys.executable, "-c", code], cwd=DOCS, capture_output=True, check=True)
    written = (DOCS / "command-line.md").read_text(encoding="utf-8")
    assert written == done.stdout.decode("utf-8"), "run: python docs/command_line.py"
