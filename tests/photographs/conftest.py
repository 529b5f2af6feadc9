"""The recipe for photographs lives outside the package."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))


@pytest.fixture
def shared() -> Path:
    """The folder of benchmark files, where there is one."""
    folder = Path(os.environ.get("SEEWHEN_SHARED", ROOT.parent / "shared")) / "data"
    if not folder.is_dir():
        pytest.skip("the benchmarks' files are not here (SEEWHEN_SHARED)")
    return folder


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny store: random photographs, a tiny tower and a tiny language model."""
    from photographs.tiny import make_store

    folder = tmp_path_factory.mktemp("photographs") / "store"
    make_store(folder)
    return folder
