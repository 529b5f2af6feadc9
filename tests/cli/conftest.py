"""A tiny checkpoint on disk, and the command line called in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli.command import Ran, in_process
from runs.tiny_checkpoint import write


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LLaVA of random weights with a tokenizer of words."""
    return write(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A picture the package drew."""
    from seewhen.scenes import render, sample

    path = tmp_path_factory.mktemp("scene") / "scene.png"
    render(sample("test", 0)).save(path)
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """`run("describe", path)`: what the installed command does, without starting a process."""
    return in_process(monkeypatch, capsys)
