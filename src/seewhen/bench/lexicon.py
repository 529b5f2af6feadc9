"""The words that stand for objects: CHAIR's published vocabulary, kept in `data/chair_lexicon.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True)
class Lexicon:
    """A vocabulary of objects and the rules that go with it."""

    node: Mapping[str, str]  # term -> the object it stands for
    pairs: Mapping[str, str]  # two words in a row -> the term they are read as
    verbs: frozenset[str]  # terms that are verbs too
    irregular: Mapping[str, str]  # inflected form -> word
    kept: frozenset[str]  # forms that are never reduced

    @property
    def objects(self) -> tuple[str, ...]:
        """The objects themselves, in the published order."""
        return tuple(dict.fromkeys(self.node.values()))

    @property
    def words(self) -> frozenset[str]:
        """Every single word that occurs in a term or a pair."""
        return frozenset(word for term in (*self.node, *self.pairs) for word in term.split())


@cache
def chair_lexicon() -> Lexicon:
    """CHAIR's vocabulary of the 80 COCO categories."""
    data = read_packaged("chair_lexicon.json")
    pairs = dict(data["pairs"])
    for animal in data["young_animals"]:
        pairs[f"baby {animal}"] = pairs[f"adult {animal}"] = animal
    for vehicle in data["passenger_vehicles"]:
        pairs[f"passenger {vehicle}"] = vehicle
    return Lexicon(
        node={term: name for name, terms in data["objects"].items() for term in terms},
        pairs=pairs,
        verbs=frozenset(data["verbs"]),
        irregular=data["irregular"],
        kept=frozenset(data["kept"]),
    )


@cache
def chair_image_lists() -> dict[str, tuple[str, ...]]:
    """Named lists of image ids, so that nobody has to shuffle a directory listing."""
    lists = read_packaged("chair_images.json")["lists"]
    return {name: tuple(str(image) for image in images) for name, images in lists.items()}


def read_packaged(name: str) -> dict[str, dict]:
    """A JSON file of this package's data folder."""
    return json.loads(resources.files("seewhen.bench").joinpath("data", name).read_text(encoding="utf-8"))
