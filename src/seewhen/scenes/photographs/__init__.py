"""Three free photographs for the demonstration, with the COCO objects that are in them (named by eye)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

_FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Photograph:
    """A picture file, what it shows, and where it comes from."""

    name: str
    path: Path
    objects: tuple[str, ...]
    source: str


def photographs() -> tuple[Photograph, ...]:
    """All of them."""
    known = json.loads((_FOLDER / "photographs.json").read_text(encoding="utf-8"))
    return tuple(
        Photograph(name, _FOLDER / facts["file"], tuple(facts["objects"]), facts["source"])
        for name, facts in known.items()
    )
