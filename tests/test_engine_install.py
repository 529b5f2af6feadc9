"""`make engine-check` goes on without vLLM where it cannot be had, and says why; nothing else stops it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / ".ci" / "install-engine"

ROOM = {"ENGINE_GIGABYTES": "0"}

pytestmark = pytest.mark.skipif(shutil.which("timeout") is None, reason="no timeout(1) here")


def installed(tmp_path: Path, made: str, limits: dict[str, str]) -> tuple[str, Path]:
    """What the script says where making the environment is `made`, and the environment."""
    make, engine = tmp_path / "make", tmp_path / "engine"
    make.write_text(f"#!/bin/sh\nmkdir -p {engine}\n{made}\n")
    make.chmod(0o755)
    ran = subprocess.run(
        ["sh", SCRIPT, make, engine], cwd=tmp_path, capture_output=True, text=True, env=os.environ | limits
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, engine


@pytest.mark.parametrize(
    ("made", "limits", "why"),
    [
        ("true", {"ENGINE_GIGABYTES": "100000000"}, "needs 100000000 GB of disk"),
        ("sleep 60", {"ENGINE_SECONDS": "1"}, "did not install within 1 seconds"),
        ("echo 'ERROR: no such package'; echo 'make: no' >&2; exit 2", {}, "ERROR: no such package"),
    ],
)
def test_why_it_is_skipped(tmp_path: Path, made: str, limits: dict[str, str], why: str) -> None:
    said, engine = installed(tmp_path, made, {**ROOM, **limits})
    assert said.startswith("SKIPPED: tests with vLLM") and why in said
    assert not engine.exists()  # half of it would be 3 GB that nobody needs


def test_what_is_there_is_kept(tmp_path: Path) -> None:
    said, engine = installed(tmp_path, f"touch {tmp_path}/engine/.installed", ROOM)
    assert said == "" and (engine / ".installed").exists()
    said, engine = installed(tmp_path, "exit 1", ROOM)  # nor made a second time
    assert said == "" and (engine / ".installed").exists()
