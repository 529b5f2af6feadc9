"""Published data for tests: found through SEEWHEN_SHARED or next to the checkout, else the test is skipped."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def nltk_data(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("nltk", reason="the NLTK variant needs the package nltk")
    folder = tmp_path_factory.mktemp("nltk")
    with tarfile.open(shared / "nltk_data.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    os.environ["NLTK_DATA"] = str(folder / "nltk_data")
    return folder / "nltk_data"


@pytest.fixture
def write(tmp_path: Path):
    """Writes records as JSON lines, or any text, and gives the path."""

    def _write(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            path.write_text("".join(json.dumps(record) + "\n" for record in content), encoding="utf-8")
        return path

    return _write
