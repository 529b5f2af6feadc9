"""The artwork: one picture with every sprite, and an index. See NOTICE for whose work it is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhen.scenes.world import COLORS

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Atlas:
    """All sprites. `variants[category]` are row numbers; `sizes[artwork][row]` is (width, height)."""

    image: Image.Image
    cell: int
    artworks: tuple[str, ...]
    variants: dict[str, tuple[int, ...]]
    sizes: dict[str, tuple[tuple[int, int], ...]]


@cache
def atlas() -> Atlas:
    """The packaged atlas, read once."""
    folder = files("seewhen.scenes") / "sprites"
    index = json.loads((folder / "index.json").read_text("utf-8"))
    variants: dict[str, list[int]] = {}
    for row, (name, _codepoint) in enumerate(index["rows"]):
        variants.setdefault(name, []).append(row)
    with (folder / "atlas.png").open("rb") as handle:
        image = Image.open(handle).convert("RGBA")
    return Atlas(
        image,
        index["cell"],
        tuple(index["artworks"]),
        {name: tuple(rows) for name, rows in variants.items()},
        {artwork: tuple((w, h) for w, h in sizes) for artwork, sizes in index["sizes"].items()},
    )


def scaled(artwork: str, row: int, longest: int) -> tuple[int, int]:
    """Width and height of a sprite whose longer side is `longest` (integer arithmetic, at least 8)."""
    width, height = atlas().sizes[artwork][row]
    top = max(width, height)
    return max(8, width * longest // top), max(8, height * longest // top)


@lru_cache(maxsize=16384)
def sprite(artwork: str, row: int, width: int, height: int, flip: bool, color: str | None) -> Pixels:
    """The sprite as an RGBA array of that size, mirrored and tinted as asked."""
    a = atlas()
    x, y = a.artworks.index(artwork) * a.cell, row * a.cell
    w, h = a.sizes[artwork][row]
    picture = a.image.crop((x, y, x + w, y + h)).resize((width, height), Image.Resampling.BILINEAR)
    if flip:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.array(picture)
    if color is not None:
        pixels[..., :3] = _tint(pixels[..., :3], COLORS[color])
    pixels.flags.writeable = False
    return pixels


def _tint(rgb: Pixels, color: tuple[int, int, int]) -> Pixels:
    """Three parts of the colour, shaded by the sprite's brightness, to one part of the sprite."""
    wide = rgb.astype(np.int32)
    light = (77 * wide[..., 0] + 150 * wide[..., 1] + 29 * wide[..., 2]) >> 8
    shade = 80 + light * 175 // 255
    painted = np.array(color, dtype=np.int32) * shade[..., None] // 255
    return ((3 * painted + wide) // 4).astype(np.uint8)
