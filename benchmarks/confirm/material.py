"""What is described: held-out photographs, or drawn scenes, each with the objects it really shows."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

QUESTION = "Please describe this image in detail."


@dataclass(frozen=True)
class Item:
    """One picture: its name, how to open it, and what it shows."""

    name: str
    source: str | tuple[str, int]  # a file, or a split of scenes and a number
    objects: frozenset[str]

    def open(self) -> Any:
        """The picture."""
        if isinstance(self.source, str):
            from seewhen.backbones.pictures import open_image

            return open_image(self.source)
        from seewhen.scenes import render, sample

        return render(sample(self.source[0], self.source[1]))


@cache
def photographs(folder: str, first: int, count: int) -> tuple[Item, ...]:
    """Some of a folder that `python -m photographs exam` made."""
    place = Path(folder)
    table = json.loads(gzip.decompress((place / "coco_objects.json.gz").read_bytes()))
    names = table["categories"]
    shown = {int(key): frozenset(names[i] for i in ids) for key, ids in table["images"].items()}
    chosen = [int(line) for line in (place / "chair.txt").read_text("utf-8").split()][first : first + count]
    return tuple(Item(str(n), str(place / "val2014" / f"COCO_val2014_{n:012d}.jpg"), shown[n]) for n in chosen)


@cache
def scenes(split: str, first: int, count: int) -> tuple[Item, ...]:
    """Drawn scenes of a split."""
    from seewhen.scenes import sample

    found = []
    for index in range(first, first + count):
        scene = sample(split, index)
        found.append(Item(scene.image, (split, index), frozenset(thing.name for thing in scene.things)))
    return tuple(found)
