"""Sampling of scenes: which things, where, how large, in which colour.

The splits cannot share a scene: the set of category names in a scene decides, through a checksum, which split
may contain it. A model tested on `test` or `shifted` has never seen that combination.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput
from seewhen.scenes import world
from seewhen.scenes.sprites import atlas, scaled
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import CATEGORIES, CONTEXTS, SIZE, SPLITS, Context, Split

Box = tuple[int, int, int, int]
Share = tuple[float, float, float, float]  # the same as fractions of the picture

# Of ten checksum classes, which belong to which split.
_CLASSES: dict[Split, frozenset[int]] = {
    "train": frozenset(range(7)),
    "val": frozenset({7}),
    "test": frozenset({8}),
    "shifted": frozenset({9}),
}
# How often a kind of thing is drawn from all there are, some of which belong to the place after all, in percent.
_STRAY: dict[Split, int] = {"train": 8, "val": 8, "test": 8, "shifted": 60}
MOST_COVERED = 0.35  # no more of a thing's box lies under things drawn later


@dataclass(frozen=True)
class Thing:
    """One object in a scene. `box` is (left, top, right, bottom) in pixels, right and bottom exclusive;
    `covered` is the part of the box that lies under the boxes of things drawn later."""

    name: str
    box: Box
    color: str | None
    covered: float
    row: int
    flip: bool

    @property
    def area(self) -> int:
        left, top, right, bottom = self.box
        return (right - left) * (bottom - top)

    @property
    def center(self) -> tuple[float, float]:
        left, top, right, bottom = self.box
        return (left + right) / 2, (top + bottom) / 2

    @property
    def place(self) -> Share:
        left, top, right, bottom = (side / SIZE for side in self.box)
        return left, top, right, bottom


@dataclass(frozen=True)
class Scene:
    """A picture before it is drawn: everything there is to know about it. Things are in drawing order."""

    split: Split
    seed: int
    index: int
    context: str
    artwork: str
    things: tuple[Thing, ...]
    top: tuple[int, int, int]
    bottom: tuple[int, int, int]
    grain: int  # strength of the noise

    @property
    def image(self) -> str:
        """The file name that question records use."""
        return f"{self.split}_{self.seed}_{self.index:06d}.png"

    @property
    def names(self) -> tuple[str, ...]:
        """The categories present, most of the picture first."""
        areas: dict[str, int] = {}
        for thing in self.things:
            areas[thing.name] = areas.get(thing.name, 0) + thing.area
        return tuple(sorted(areas, key=lambda name: (-areas[name], name)))

    def of(self, name: str) -> tuple[Thing, ...]:
        return tuple(thing for thing in self.things if thing.name == name)

    @property
    def boxes(self) -> dict[str, tuple[Share, ...]]:
        """Where the things of each category are."""
        return {name: tuple(thing.place for thing in self.of(name)) for name in self.names}


def scene_named(image: str) -> Scene:
    """The scene of a file name such as test_0_000012.png."""
    try:
        split, seed, index = Path(image).stem.split("_")
        return sample(split, int(index), seed=int(seed))  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(f"{image} is not the name of a scene.", "It looks like test_0_000012.png.") from None


def sample(split: Split, index: int, *, seed: int = 0, artwork: str | None = None) -> Scene:
    """The scene of that number. `artwork` fixes the set of sprites; by default one of the trained two."""
    if split not in SPLITS:
        raise InvalidInput(f"There is no split {split!r}.", f"Choose one of: {', '.join(SPLITS)}.")
    if artwork is not None and artwork not in atlas().artworks:
        raise InvalidInput(f"There is no artwork {artwork!r}.", f"Choose one of: {', '.join(atlas().artworks)}.")
    stream = Stream(seed, "scene", split, index)
    while True:  # until the names belong to this split; about ten tries at most
        scene = _attempt(stream, split, seed, index, artwork)
        if len(scene.names) >= 2 and _checksum(scene.names) in _CLASSES[split]:
            return scene


def dataset(split: Split, n: int, *, seed: int = 0, start: int = 0, artwork: str | None = None) -> list[Scene]:
    """Scenes `start` to `start + n`."""
    return [sample(split, index, seed=seed, artwork=artwork) for index in range(start, start + n)]


def truth(scene: Scene) -> dict[str, Any]:
    """The ground truth as plain data for JSON."""
    return {
        "image": scene.image,
        "split": scene.split,
        "seed": scene.seed,
        "index": scene.index,
        "context": scene.context,
        "artwork": scene.artwork,
        "counts": {name: len(scene.of(name)) for name in scene.names},
        "objects": [
            {"name": t.name, "box": list(t.box), "color": t.color, "covered": round(t.covered, 4)}
            for t in scene.things
        ],
    }


def _checksum(names: Iterable[str]) -> int:
    return zlib.crc32(",".join(sorted(names)).encode()) % 10


def _attempt(stream: Stream, split: Split, seed: int, index: int, artwork: str | None) -> Scene:
    context = stream.choice(CONTEXTS)
    chosen_artwork = stream.choice(world.TRAINED_ARTWORK)
    names = draw_names(stream, context, stream.weighted((2, 3, 4, 5), (2, 4, 4, 2)), _STRAY[split])
    things = _place(stream, names, artwork or chosen_artwork)
    jitter = stream.between(-20, 20)

    def shaded(color: tuple[int, int, int]) -> tuple[int, int, int]:
        r, g, b = (min(255, max(0, c + jitter + stream.between(-12, 12))) for c in color)
        return r, g, b

    top, bottom = shaded(context.top), shaded(context.bottom)
    grain = stream.between(8, 48)
    return Scene(split, seed, index, context.name, artwork or chosen_artwork, things, top, bottom, grain)


def draw_names(stream: Stream, context: Context, n: int, stray: int, without: Iterable[str] = ()) -> list[str]:
    """`n` different categories, mostly members of the context; `stray` percent come from anywhere."""
    taken = list(without)
    out: list[str] = []
    while len(out) < n:
        if stream.below(100) < stray:
            name = stream.choice(CATEGORIES)
        else:
            name = stream.weighted(tuple(context.members), tuple(context.members.values()))
        if name not in taken:
            taken.append(name)
            out.append(name)
    return out


def _place(stream: Stream, names: list[str], artwork: str) -> tuple[Thing, ...]:
    placed: list[Thing] = []
    for name in names:
        count = 1 if name in world.SINGLE else stream.weighted((1, 2, 3), (7, 2, 1))
        color = stream.choice(tuple(world.COLORS)) if stream.chance(0.3) else None
        longest = stream.between(8, 19) * 4 if count == 1 else stream.between(7, 11) * 4
        for _ in range(count):
            row = stream.choice(atlas().variants[name])
            flip = stream.chance(0.5)
            width, height = scaled(artwork, row, longest)
            for box in _boxes(stream, width, height, tries=30):
                if all(_share(under.box, box, under.covered) <= MOST_COVERED for under in placed):
                    placed = [_cover(under, box) for under in placed]
                    placed.append(Thing(name, box, color, 0.0, row, flip))
                    break
    return tuple(placed)


def _boxes(stream: Stream, width: int, height: int, tries: int) -> Iterator[Box]:
    for _ in range(tries):
        x, y = stream.between(0, SIZE - width), stream.between(0, SIZE - height)
        yield x, y, x + width, y + height


def _share(under: Box, over: Box, before: float) -> float:
    """Part of `under` that is covered once `over` lies on it. Overlapping covers count twice: a bound."""
    width = min(under[2], over[2]) - max(under[0], over[0])
    height = min(under[3], over[3]) - max(under[1], over[1])
    area = (under[2] - under[0]) * (under[3] - under[1])
    return before + max(0, width) * max(0, height) / area


def _cover(under: Thing, over: Box) -> Thing:
    covered = _share(under.box, over, under.covered)
    return Thing(under.name, under.box, under.color, covered, under.row, under.flip)
