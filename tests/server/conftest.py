"""Fixtures of the server's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loopback import Running, running
from stranger import Stranger, strange

import seewhen
from seewhen.backbones.loading import Loaded


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import checkpoint as builder

    return builder.build(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="session")
def loaded(checkpoint: Path) -> Loaded:
    """The same model again, for the library: the server's own belongs to its thread."""
    return seewhen.load(checkpoint, device="cpu")


@pytest.fixture(scope="session")
def server(checkpoint: Path) -> Iterator[Running]:
    with running(seewhen.load(checkpoint, device="cpu")) as started:
        yield started


@pytest.fixture
def serving(checkpoint: Path) -> Callable[..., Any]:
    """A server of one's own, with a model of its own and settings of one's own."""
    return lambda **settings: running(seewhen.load(checkpoint, device="cpu"), **settings)


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """A server that is not ours."""
    with strange() as state:
        yield state
