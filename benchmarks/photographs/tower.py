"""Stage one: the tower learns COCO's objects, patch by patch.

Each patch scores each object; an image's score is a smooth maximum over its patches. So what the image shows must
be found somewhere in it, and the patches become local evidence, which is what the language model will read. Beside
that the patches learn to tell what a teacher sees (distil.py), if the recipe wants it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Dinov2Model

from photographs.distil import Lessons
from photographs.loop import Log, train
from photographs.recipe import Tower
from seewhen.backbones.photo.dino import MEAN, STD


class Scores(nn.Module):
    """Scores of every object in every patch, from the features a language model would get."""

    def __init__(self, width: int, objects: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(objects, width).normal_(std=0.02))
        self.bias = nn.Parameter(torch.full((objects,), -2.0))

    def forward(self, features: Tensor) -> Tensor:
        return F.linear(F.layer_norm(features, features.shape[-1:]), self.weight, self.bias)


def pooled(scores: Tensor, sharpness: float) -> Tensor:
    """(n, patches, objects) -> (n, objects): the smooth maximum, a mean of exponentials."""
    scores = scores.float()
    return (torch.logsumexp(sharpness * scores, dim=1) - math.log(scores.shape[1])) / sharpness


def features(tower: Dinov2Model, pixels: Tensor) -> Tensor:
    """Patch features of normalised pixels, as LLaVA takes them: the last layer, without the class token."""
    return tower(pixels, output_hidden_states=True).hidden_states[-1][:, 1:]


def half(device: str) -> torch.autocast:
    """bfloat16 where it is faster."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def normalised(pixels: Tensor) -> Tensor:
    """(n, side, side, 3) bytes -> (n, 3, side, side)."""
    mean, std = (torch.tensor(v, device=pixels.device) for v in (MEAN, STD))
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)


def augmented(pixels: Tensor, crop: float) -> Tensor:
    """Random crops, flips and brightness of normalised pixels, all at once."""
    n = len(pixels)
    scale = crop + (1 - crop) * torch.rand(n, 2, device=pixels.device)
    shift = (2 * torch.rand(n, 2, device=pixels.device) - 1) * (1 - scale)
    flip = 1 - 2 * torch.randint(0, 2, (n,), device=pixels.device).float()
    zero = torch.zeros(n, device=pixels.device)
    rows = [
        torch.stack([scale[:, 0] * flip, zero, shift[:, 0]], 1),
        torch.stack([zero, scale[:, 1], shift[:, 1]], 1),
    ]
    grid = F.affine_grid(torch.stack(rows, 1), list(pixels.shape), align_corners=False)
    out = F.grid_sample(pixels, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    light = 1 + 0.4 * (torch.rand(n, 1, 1, 1, device=pixels.device) - 0.5)
    return out * light + 0.4 * (torch.rand(n, 1, 1, 1, device=pixels.device) - 0.5)


def layer_groups(tower: Dinov2Model, heads: Sequence[nn.Module], stage: Tower) -> list[dict[str, Any]]:
    """Lower layers learn slower; the heads learn fastest."""
    depth = tower.config.num_hidden_layers
    by_layer: dict[int, list[nn.Parameter]] = {}
    for name, parameter in tower.named_parameters():
        layer = int(name.split(".")[2]) + 1 if name.startswith("encoder.layer.") else 0
        if not name.startswith("layernorm") and "mask_token" not in name:  # neither reaches the features
            by_layer.setdefault(layer, []).append(parameter)
    groups = [
        {"params": parameters, "lr": stage.rate * stage.layer_decay ** (depth - layer)}
        for layer, parameters in by_layer.items()
    ]
    return [*groups, {"params": [p for head in heads for p in head.parameters()], "lr": 4 * stage.rate}]


def average_precision(scores: Tensor, truth: Tensor) -> Tensor:
    """Per object; objects that no image shows give nan."""
    order = scores.argsort(dim=0, descending=True)
    hits = truth.float().gather(0, order)
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1, device=hits.device)[:, None]
    return (precision * hits).sum(0) / hits.sum(0)


@torch.inference_mode()
def score_all(tower: Dinov2Model, scores: Scores, pixels: Tensor, sharpness: float, batch: int = 512) -> Tensor:
    """Image scores (n, objects)."""
    found = []
    for part in pixels.split(batch):
        with half(pixels.device.type):
            found.append(pooled(scores(features(tower, normalised(part))), sharpness))
    return torch.cat(found)


def train_tower(
    tower: Dinov2Model,
    scores: Scores,
    lessons: Lessons | None,
    stage: Tower,
    batch_of: Callable[[int], tuple[Tensor, Tensor]],
    validation: tuple[Tensor, Tensor],
    log: Log,
    *,
    first: int,
    keep: Callable[[int], None],
    check_every: int,
) -> None:
    """`batch_of(step)` gives bytes and labels (n, objects); `lessons` come from a teacher, where there is one."""
    device = validation[0].device.type

    def backward(step: int) -> dict[str, Tensor]:
        pixels, truth = batch_of(step)
        pixels = augmented(normalised(pixels), stage.crop)
        with half(device):
            seen = features(tower, pixels)
            patches = scores(seen)
            taught = None if lessons is None else lessons(seen, pixels)
        loss = F.binary_cross_entropy_with_logits(pooled(patches, stage.sharpness), truth.float())
        # Summed over objects, so that the rate means the same for any number of them.
        total = loss * truth.shape[1] / 10
        if taught is None:
            total.backward()
            return {"loss": loss}
        (total + stage.distil * taught).backward()
        return {"loss": loss, "taught": taught}

    def check(step: int) -> None:
        tower.eval()
        found = score_all(tower, scores, validation[0], stage.sharpness)
        precision = average_precision(found, validation[1])
        log(stage="tower", step=step, validation_map=round(float(precision.nanmean()), 4))
        tower.train()

    groups = layer_groups(tower, [scores] if lessons is None else [scores, lessons], stage)
    train("tower", stage, groups, backward, log, first=first, keep=keep, check=check, check_every=check_every)
    tower.eval()
