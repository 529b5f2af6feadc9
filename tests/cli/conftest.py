"""A tiny checkpoint on disk, and the command line called in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.command import Ran
from runs.tiny_checkpoint import write
from seewhen import cli


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

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["seewhen", *map(str, arguments)])
        monkeypatch.setattr(cli, "_debug", False)
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        out, err = capsys.readouterr()
        return Ran(int(exit_.value.code or 0), out, err)

    return call
