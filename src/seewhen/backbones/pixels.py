"""Pixels as pictures: what processors give to models, as a list of (3, height, width) tensors and back.

For methods that change a part of the image. Most families take whole images or tiles, (..., 3, H, W);
Qwen-VL's take one row per patch, in blocks of the patches that become one token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seewhen.errors import UnsupportedMode


@dataclass(frozen=True)
class Views:
    """The pictures in a tensor of pixels. `grids` are (time, height, width) in patches, for packed pixels.

    A packed still image holds the same picture for each of the frames that a patch spans.
    """

    pictures: tuple[Tensor, ...]  # (3, H, W) each; tiles that only pad the batch are left out
    real: Tensor  # which of the pictures of the tensor are not padding
    shape: torch.Size
    grids: tuple[tuple[int, int, int], ...] = ()
    merge: int = 1

    @classmethod
    def of(cls, pixels: Tensor, inputs: dict[str, Any], vision_config: Any) -> Views:
        """The pictures of `pixels`; `inputs` hold the grids of packed ones."""
        if pixels.dim() >= 4:
            flat = pixels.reshape(-1, *pixels.shape[-3:])
            real = flat.flatten(1).any(dim=1)
            return cls(tuple(flat[real]), real, pixels.shape)
        grids = inputs.get("image_grid_thw")
        merge, patch = (getattr(vision_config, name, None) for name in ("spatial_merge_size", "patch_size"))
        if not isinstance(grids, Tensor) or not merge or not patch or int(grids.prod(dim=1).sum()) != len(pixels):
            raise UnsupportedMode(
                f"Pixels of the shape {tuple(pixels.shape)} cannot be read as pictures.",
                "Methods that change a part of the image need image pixels as their processor gives them.",
            )
        sizes = tuple((int(t), int(h), int(w)) for t, h, w in grids.tolist())
        if any(t != 1 for t, _, _ in sizes):
            raise UnsupportedMode("A video cannot be changed picture by picture.", "Give images.")
        parts = pixels.split([t * h * w for t, h, w in sizes])
        pictures = tuple(
            _unpacked(part, size, merge, patch)[:, 0] for part, size in zip(parts, sizes, strict=True)
        )
        return cls(pictures, torch.ones(len(sizes), dtype=torch.bool), pixels.shape, sizes, merge)

    def token_grids(self, tokens: int) -> tuple[tuple[int, int], ...] | None:
        """Height and width of each picture's grid of tokens, if `tokens` in all are enough to tell."""
        if self.grids:
            found = tuple((h // self.merge, w // self.merge) for _, h, w in self.grids)
            return found if sum(h * w for h, w in found) == tokens else None
        each, rest = divmod(tokens, len(self.pictures))
        side = math.isqrt(each)
        return None if rest or side * side != each else ((side, side),) * len(self.pictures)

    def packed(self, pictures: list[Tensor]) -> Tensor:
        """Other pictures of the same sizes in the layout of the pixels; zeros where the batch is padded."""
        if not self.grids:
            flat = pictures[0].new_zeros(len(self.real), *self.shape[-3:])
            flat[self.real.to(flat.device)] = torch.stack(pictures)
            return flat.view(self.shape)
        parts = []
        for picture, size in zip(pictures, self.grids, strict=True):
            patch = picture.shape[-1] // size[2]
            time = self.shape[1] // (3 * patch * patch)
            parts.append(_packed(picture[:, None].expand(-1, time, -1, -1), size, self.merge, patch))
        return torch.cat(parts)


def _unpacked(patches: Tensor, size: tuple[int, int, int], merge: int, patch: int) -> Tensor:
    """(patches, values) to (3, time, H, W); time is the number of frames one patch spans."""
    _, height, width = size
    split = patches.view(height // merge, width // merge, merge, merge, 3, -1, patch, patch)
    return split.permute(4, 5, 0, 2, 6, 1, 3, 7).reshape(3, -1, height * patch, width * patch)


def _packed(frames: Tensor, size: tuple[int, int, int], merge: int, patch: int) -> Tensor:
    """The inverse of `_unpacked`."""
    _, height, width = size
    split = frames.reshape(3, -1, height // merge, merge, patch, width // merge, merge, patch)
    return split.permute(2, 5, 3, 6, 0, 1, 4, 7).reshape(height * width, -1)
