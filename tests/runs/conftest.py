"""Fixtures, and a path on which worker processes find the toy answerer by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH", "")]))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """A tiny LLaVA on disk."""
    import tiny_checkpoint

    return tiny_checkpoint.write(tmp_path_factory.mktemp("tiny"))
