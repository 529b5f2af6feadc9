"""What a served model is asked, with its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import seewhen
from seewhen.served.replies import Completion
from seewhen.served.server import Meter

Exchange = tuple[Mapping[str, Any], Completion]


def recorded(model: seewhen.Remote, monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """Grows with every request from now on."""
    ask, found = model.ask, list[Exchange]()

    def asking(requests: Sequence[Mapping[str, Any]], meter: Meter) -> list[Completion]:
        answers = ask(requests, meter)
        found.extend(zip(requests, answers, strict=True))
        return answers

    monkeypatch.setattr(model, "ask", asking)
    return found
