"""The measured averages of the small models, which stand under every demonstration."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

_FILE = resources.files("seewhen.showing").joinpath("data", "averages.json")


def averages_of(model: str) -> dict[str, Any] | None:
    """`{model, rows}` of a model, as the study of `confirm` left them; None where nothing was measured."""
    if not _FILE.is_file():
        return None
    known: list[dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return next((each for each in known if each["model"] == model), None)
