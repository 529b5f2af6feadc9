"""Low-rank updates of a language model's matrices."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def merge(layers: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Adds updates to plain linear layers."""
    with torch.no_grad():
        for name, module in layers.named_modules():
            if isinstance(module, nn.Linear) and f"{name}.up" in values:
                product = values[f"{name}.up"].float() @ values[f"{name}.down"].float()
                module.weight += product.to(module.weight)
