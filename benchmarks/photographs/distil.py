"""What a teacher sees, as a second thing for the tower to learn.

The tower's patches, pooled to the teacher's grid, should tell by a linear map what the teacher's last layer holds
there. The teacher looks at the same view of the photograph, crop and all; nothing of it remains in the tower.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from photographs.teachers import Teacher
from seewhen.backbones.photo.dino import MEAN, STD


def as_bytes(pixels: Tensor) -> Tensor:
    """Normalised pixels (n, 3, side, side) -> values from 0 to 255 (n, side, side, 3), not rounded."""
    mean, std = (torch.tensor(v, device=pixels.device) for v in (MEAN, STD))
    return ((pixels.permute(0, 2, 3, 1) * std + mean) * 255).clamp(0, 255)


class Lessons(nn.Module):
    """The teacher's features, each at mean zero and spread one over the examples, and a map that guesses them.

    Without that, what all photographs have in common would be most of what is to be learned.
    """

    mean: Tensor
    spread: Tensor

    def __init__(self, teacher: Teacher, width: int, examples: Tensor) -> None:
        """`width` is that of the tower's patches; `examples` are bytes (n, side, side, 3)."""
        super().__init__()
        self._teacher = teacher
        seen = self._seen(examples).flatten(0, 1)
        self.register_buffer("mean", seen.mean(0))
        self.register_buffer("spread", seen.std(0).clamp_min(1e-2))
        self.guess = nn.Linear(width, seen.shape[1], device=examples.device)

    @torch.no_grad()
    def _seen(self, pixels: Tensor) -> Tensor:
        return self._teacher.last_map(pixels).float()

    def forward(self, features: Tensor, pixels: Tensor) -> Tensor:
        """One minus the cosine, over all positions, of what patches tell and what the teacher sees.

        `features` (n, patches, width) are the tower's of the normalised `pixels`.
        """
        target = (self._seen(as_bytes(pixels)) - self.mean) / self.spread
        told = self.guess(F.layer_norm(on_grid(features, math.isqrt(target.shape[1])), features.shape[-1:]))
        return (1 - F.cosine_similarity(told.float(), target, dim=-1)).mean()


def on_grid(features: Tensor, side: int) -> Tensor:
    """(n, patches, width) -> (n, side * side, width): means over neighbouring patches."""
    n, patches, width = features.shape
    square = features.transpose(1, 2).reshape(n, width, math.isqrt(patches), -1)
    return F.adaptive_avg_pool2d(square, side).flatten(2).transpose(1, 2)
