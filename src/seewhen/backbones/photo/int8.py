"""Weights in a quarter of their size: one byte per number, one scale per row; small tensors in float16."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor


def load_int8(path: Path) -> dict[str, Tensor]:
    """Float32 weights."""
    stored = load_file(path)
    weights = {}
    for name, tensor in stored.items():
        if name.endswith(".scale") and name.removesuffix(".scale") in stored:
            continue
        if tensor.dtype == torch.int8:
            scale = stored[f"{name}.scale"].reshape(-1, *[1] * (tensor.dim() - 1))
            weights[name] = tensor.float() * scale
        else:
            weights[name] = tensor.float()
    return weights
