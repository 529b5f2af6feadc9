"""The world the scenes are drawn from: what exists, what is found where, and what it is called.

Categories carry COCO's names. A context says which of them are found together, so a model that reads or sees
enough scenes learns to expect a spoon where there is a bowl, whether or not the picture shows one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SIZE = 192  # pixels, both ways
PATCH = 16  # the packaged model's patch: 12 x 12 image tokens

Split = Literal["train", "val", "test", "shifted"]
SPLITS: tuple[Split, ...] = ("train", "val", "test", "shifted")

# Artwork sets seen in training, and the one kept away from it.
TRAINED_ARTWORK = ("noto", "fluent")
HELD_OUT = "twemoji"

COLORS: dict[str, tuple[int, int, int]] = {
    "red": (235, 40, 45),
    "yellow": (250, 215, 40),
    "green": (50, 190, 70),
    "blue": (50, 100, 240),
    "purple": (160, 60, 215),
}

NUMBERS = ("zero", "one", "two", "three", "four")


@dataclass(frozen=True)
class Context:
    """A kind of place: how it is called, its colours (top, bottom) and what is found there, with weights."""

    name: str
    phrase: str
    top: tuple[int, int, int]
    bottom: tuple[int, int, int]
    members: dict[str, int]


def _context(
    name: str, phrase: str, top: tuple[int, int, int], bottom: tuple[int, int, int], members: str
) -> Context:
    pairs = (part.rsplit(" ", 1) for part in members.split(", "))
    return Context(name, phrase, top, bottom, {item: int(weight) for item, weight in pairs})


CONTEXTS: tuple[Context, ...] = (
    _context(
        "kitchen",
        "a kitchen",
        (232, 222, 200),
        (190, 160, 120),
        "cup 8, bowl 8, knife 8, spoon 8, bottle 6, banana 4, "
        "apple 4, orange 3, carrot 4, broccoli 4, person 6, chair 3",
    ),
    _context(
        "restaurant",
        "a restaurant",
        (150, 90, 80),
        (110, 70, 60),
        "pizza 6, sandwich 5, hot dog 5, donut 5, cake 6, wine glass 8, "
        "cup 6, bottle 6, person 8, chair 6, bowl 4, spoon 4",
    ),
    _context(
        "street",
        "a city street",
        (170, 195, 220),
        (110, 110, 115),
        "car 10, bus 7, truck 7, traffic light 8, bicycle 6, "
        "motorcycle 6, stop sign 6, person 10, umbrella 3, handbag 3",
    ),
    _context(
        "airport",
        "an airport",
        (200, 215, 235),
        (170, 175, 180),
        "airplane 10, suitcase 10, backpack 7, handbag 6, person 9, tie 5, cell phone 5, bus 3, train 5, truck 2",
    ),
    _context(
        "beach",
        "a beach",
        (140, 205, 240),
        (235, 215, 160),
        "boat 10, umbrella 9, person 8, bird 7, frisbee 6, kite 6, sports ball 4, dog 3, bottle 3",
    ),
    _context(
        "park",
        "a park",
        (160, 215, 240),
        (110, 180, 90),
        "dog 9, frisbee 6, kite 6, sports ball 7, bicycle 6, "
        "person 9, bird 6, skateboard 6, tennis racket 6, backpack 4",
    ),
    _context(
        "farm",
        "a farm",
        (190, 220, 235),
        (150, 130, 70),
        "cow 9, sheep 9, horse 9, dog 4, cat 3, truck 4, bird 5, person 5, apple 3, carrot 3",
    ),
    _context(
        "zoo",
        "a zoo",
        (215, 220, 180),
        (170, 150, 90),
        "elephant 9, giraffe 9, zebra 9, bear 8, bird 6, person 7, backpack 3, umbrella 2",
    ),
    _context(
        "office",
        "an office",
        (225, 228, 232),
        (165, 170, 180),
        "laptop 9, keyboard 9, mouse 9, cell phone 6, book 6, "
        "chair 8, cup 6, clock 5, scissors 4, tie 4, person 6",
    ),
    _context(
        "living room",
        "a living room",
        (235, 225, 205),
        (165, 120, 90),
        "couch 10, tv 9, potted plant 8, vase 6, book 6, clock 5, cat 6, dog 4, chair 6, person 5, cup 3",
    ),
    _context(
        "bedroom",
        "a bedroom",
        (205, 200, 230),
        (150, 140, 175),
        "bed 10, teddy bear 8, book 6, clock 6, laptop 4, "
        "cell phone 5, cat 4, chair 4, backpack 3, person 4, cup 2",
    ),
    _context(
        "bathroom",
        "a bathroom",
        (205, 235, 235),
        (150, 195, 200),
        "toilet 10, toothbrush 10, bottle 7, cup 6, scissors 6, potted plant 4, vase 3, person 4, clock 3",
    ),
    _context(
        "snow field",
        "a snow field",
        (180, 210, 240),
        (240, 244, 250),
        "skis 10, person 10, backpack 7, dog 5, bear 4, train 4, truck 3, bird 3, bottle 2",
    ),
)

CATEGORIES: tuple[str, ...] = tuple(sorted({name for context in CONTEXTS for name in context.members}))

_IRREGULAR = {
    "person": "people",
    "knife": "knives",
    "wine glass": "wine glasses",
    "bus": "buses",
    "couch": "couches",
    "sandwich": "sandwiches",
    "toothbrush": "toothbrushes",
    "mouse": "mice",
    "sheep": "sheep",
    "skis": "skis",
    "scissors": "scissors",
    "broccoli": "broccoli",
}
# Never more than one of these: their plural is their singular, so a caption could not tell.
SINGLE = frozenset({"sheep", "skis", "scissors", "broccoli"})


def plural(name: str) -> str:
    return _IRREGULAR.get(name, name + "s")


def article(name: str) -> str:
    """POPE's rule: "an" before a vowel."""
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def counted(name: str, count: int, color: str | None = None) -> str:
    """How a caption names it: "a dog", "an apple", "two red cars", "a pair of skis"."""
    adjective = f"{color} " if color else ""
    if name in ("skis", "scissors"):
        return f"a pair of {adjective}{name}"
    if name == "broccoli":
        return f"some {adjective}{name}"
    if count == 1:
        return article(adjective + name)
    return f"{NUMBERS[count]} {adjective}{plural(name)}"
