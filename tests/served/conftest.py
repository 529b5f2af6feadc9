"""Commands in this process, and a picture to ask about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.command import Ran, in_process
from seewhen.scenes import dataset, render


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    return in_process(monkeypatch, capsys)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "scene.png"
    render(dataset("shifted", 1)[0]).save(path)
    return path
