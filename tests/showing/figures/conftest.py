from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

import made_up


@pytest.fixture(scope="session")
def cases():
    """Twelve answers of random numbers about real scenes."""
    return made_up.answers(12)
