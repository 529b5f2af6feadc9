"""Writes weights in a quarter of their size; `seewhen.backbones.photo.int8` reads them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from seewhen.atomic import replacing

SMALL = 4096  # numbers; below it a byte saved is not worth the error


def to_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded weights, and the scale of each row (float32: tiny scales would vanish in float16)."""
    rows = weight.float().reshape(weight.shape[0], -1)
    scale = rows.abs().amax(dim=1).clamp_min(1e-12) / 127
    return (rows / scale[:, None]).round().to(torch.int8).reshape(weight.shape), scale


def save_int8(weights: Mapping[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write weights; `seewhen.backbones.photo.int8.load_int8` reads them."""
    out: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.numel() < SMALL or weight.dim() < 2 or weight.shape[0] == 1:
            out[name] = weight.detach().to(torch.float16).contiguous().cpu()
        else:
            rounded, scale = to_int8(weight.detach().cpu())
            out[name], out[f"{name}.scale"] = rounded.contiguous(), scale
    with replacing(path) as part:
        save_file(out, part, metadata=metadata)
