"""What things are called: names, articles, plurals, other names, and the scenes that some things make.

Every name here is one that CHAIR's vocabulary reads as the category (a test checks it), so what is written about a
photograph mentions exactly what was meant.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class Noun:
    """A way to name a thing: with its article, and without ("the dog"); `many` takes a plural verb."""

    phrase: str
    bare: str
    many: bool = False


def article(name: str) -> str:
    return "an" if name[0] in "aeiou" else "a"


def one(name: str) -> Noun:
    return Noun(f"{article(name)} {name}", name)


def several(name: str) -> tuple[Noun, ...]:
    return Noun(name, name, many=True), Noun(f"some {name}", name, many=True)


# Besides the category's own name. How many there are is not known, so plurals are few.
_OTHER: dict[str, tuple[Noun, ...]] = {
    "airplane": (one("plane"),),
    "bicycle": (one("bike"),),
    "book": several("books"),
    "broccoli": (Noun("broccoli", "broccoli"), Noun("some broccoli", "broccoli")),
    "car": several("cars")[:1],
    "cell phone": (one("phone"),),
    "chair": several("chairs")[:1],
    "couch": (one("sofa"),),
    "dining table": (one("table"),),
    "motorcycle": (one("motorbike"),),
    "person": (one("person"), *several("people")),
    "refrigerator": (one("fridge"),),
    "scissors": (Noun("a pair of scissors", "pair of scissors"),),
    "sheep": (Noun("sheep", "sheep", many=True),),
    "skis": (Noun("a pair of skis", "pair of skis"),),
    "sports ball": (one("ball"),),
    "tv": (one("television"),),
}
_NO_SINGULAR = ("broccoli", "scissors", "skis")


def nouns(category: str) -> tuple[Noun, ...]:
    """All ways to name a category; its own name comes first and twice as often."""
    own = () if category in _NO_SINGULAR else (one(category),) * 2
    return (*own, *_OTHER.get(category, ()))


def asked(category: str) -> str:
    """As questions name it: "a dog", and "a skis" as POPE has it."""
    return f"{article(category)} {category}"


@dataclass(frozen=True)
class Scene:
    """A place or occasion that at least `least` of these things suggest."""

    names: tuple[str, ...]
    things: frozenset[str]
    least: int = 1


def _scene(names: str, things: str, least: int = 1) -> Scene:
    return Scene(tuple(names.split("|")), frozenset(things.split(",")), least)


SCENES: tuple[Scene, ...] = (
    _scene("a kitchen", "oven,microwave,refrigerator,sink,toaster", 2),
    _scene("a bathroom", "toilet,toothbrush,hair drier,sink", 2),
    _scene("a bathroom", "toilet"),
    _scene("a bedroom", "bed"),
    _scene("a living room", "couch,tv,remote", 2),
    _scene("a meal|a set place", "dining table,fork,knife,spoon,wine glass,cup,bowl,pizza,cake,sandwich", 4),
    _scene("a meal", "dining table,fork,knife,spoon,wine glass,cup,bowl,pizza,cake,sandwich", 3),
    _scene("a place to work|a work area", "laptop,keyboard,mouse", 2),
    _scene("a baseball game", "baseball bat,baseball glove"),
    _scene("a tennis match|a tennis court", "tennis racket"),
    _scene("a snowy slope|a snowy place", "skis,snowboard"),
    _scene("the water|the waves", "surfboard"),
    _scene("the water", "boat"),
    _scene("a street|a city street", "traffic light,stop sign,parking meter,fire hydrant"),
    _scene("a street|traffic", "car,bus,truck,motorcycle,bicycle", 2),
    _scene("the countryside|a field", "sheep,cow,horse"),
    _scene("the outdoors|grassland", "giraffe,zebra,elephant"),
    _scene("an open field|a windy day", "kite"),
)


def scene_of(things: Collection[str]) -> Scene | None:
    """The first scene these things suggest."""
    shown = set(things)
    return next((scene for scene in SCENES if len(scene.things & shown) >= scene.least), None)
