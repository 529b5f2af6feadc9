"""Patch grids: which image tokens lie where in which image, for overlays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seewhen.backbone import Backbone


@dataclass(frozen=True)
class ImageGrid:
    """A block of a row's image tokens that forms a grid over (a part of) one image.

    `start` counts the row's image tokens, `height` x `width` patches follow in reading order, `stride`
    tokens from one grid row to the next (more than `width` where a row ends with a separator token).
    `box` is the part of the image it covers as fractions (left, top, right, bottom); `kind` says what
    it is: a whole image, a tile of it, a thumbnail, or tokens without a place ("queries").
    """

    image: int
    start: int
    height: int
    width: int
    stride: int
    box: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    kind: str = "image"

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ImageGrid:
        """The inverse of `dataclasses.asdict` after a trip through JSON."""
        return cls(**{**values, "box": tuple(values["box"])})

    def map_of(self, weights: Tensor) -> Tensor:
        """The (height, width) map of per-token weights (tokens,)."""
        index = torch.arange(self.height)[:, None] * self.stride + torch.arange(self.width)[None]
        return weights[self.start + index]


def image_grids(backbone: Backbone, inputs: dict[str, Any], rows: int) -> tuple[tuple[ImageGrid, ...], ...]:
    """The grids of each row, as far as they can be told from the inputs of `generate`."""
    ids = inputs.get("input_ids")
    if not isinstance(ids, Tensor):
        return ((),) * rows
    mask = backbone.image_mask(ids)
    if ids.shape[0] != rows:
        mask = mask.repeat_interleave(rows // ids.shape[0], dim=0)
    return tuple(tuple(_square_runs(row)) for row in mask.cpu())


def _square_runs(mask: Tensor) -> list[ImageGrid]:
    grids: list[ImageGrid] = []
    start = 0
    positions = mask.nonzero().flatten().tolist()
    runs: list[int] = []
    for before, position in zip([None, *positions], positions, strict=False):
        if before is not None and position == before + 1:
            runs[-1] += 1
        else:
            runs.append(1)
    for image, length in enumerate(runs):
        side = math.isqrt(length)
        if side * side == length:
            grids.append(ImageGrid(image, start, side, side, side))
        else:
            grids.append(ImageGrid(image, start, 1, length, length, kind="queries"))
        start += length
    return grids
