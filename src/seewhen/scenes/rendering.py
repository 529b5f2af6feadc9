"""Drawing of scenes, in integer arithmetic: the same bytes everywhere."""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from seewhen.scenes.scene import Scene
from seewhen.scenes.sprites import Pixels, sprite
from seewhen.scenes.streams import key
from seewhen.scenes.world import SIZE


def render(scene: Scene) -> Image.Image:
    """The picture of a scene, RGB, 192 x 192."""
    return Image.fromarray(pixels(scene))


def pixels(scene: Scene) -> Pixels:
    """The picture as an array (height, width, 3)."""
    rows = np.arange(SIZE, dtype=np.int32)[:, None]
    top, bottom = (np.array(c, dtype=np.int32)[None] for c in (scene.top, scene.bottom))
    shade = top + (bottom - top) * rows // (SIZE - 1)
    canvas = np.repeat(shade[:, None, :], SIZE, axis=1)
    for thing in scene.things:
        left, upper, right, lower = thing.box
        paint = sprite(scene.artwork, thing.row, right - left, lower - upper, thing.flip, thing.color)
        alpha = paint[..., 3:].astype(np.int32)
        under = canvas[upper:lower, left:right]
        under[...] = (paint[..., :3] * alpha + under * (255 - alpha) + 127) // 255
    canvas += _noise(scene)
    return np.clip(canvas, 0, 255).astype(np.uint8)


def _noise(scene: Scene) -> NDArray[np.int32]:
    """Grain in blocks of 2 x 2 pixels, over everything. Raw bits of PCG64: a sequence numpy guarantees."""
    half = SIZE // 2
    raw = np.random.PCG64(key(scene.seed, "noise", scene.split, scene.index)).random_raw(half * half * 3 // 8)
    if sys.byteorder == "big":
        raw = raw.byteswap()
    values = raw.view(np.uint8).reshape(half, half, 3).astype(np.int32) - 128
    return (values * scene.grain // 128).repeat(2, axis=0).repeat(2, axis=1)
