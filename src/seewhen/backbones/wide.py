"""Wide matrices of a small model, laid in memory for one token at a time.

Decoding multiplies each matrix with one row. Where a matrix has many more outputs than inputs (the head, the first
half of a feed-forward part), a processor reads it up to twice as fast by columns as by rows. Values and shapes
stay what they are; sums are added up in another order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from seewhen.backbones.plain import plain_weight

_WIDE = 2  # times as many outputs as inputs
# Parameters: the head of a larger model may not be there twice, and its steps are long enough to share.
_SMALL = 1_000_000_000


def is_small(model: Any) -> bool:
    """Whether it is a small model on a CPU."""
    return model.device.type == "cpu" and sum(each.numel() for each in model.parameters()) <= _SMALL


def lay_wide(model: Any) -> None:
    """Lay the wide linear layers of a small float32 model on a CPU by columns, in place."""
    if not is_small(model):
        return
    for module in model.modules():
        weight = plain_weight(module)
        if weight is None or weight.dtype != torch.float32:
            continue
        if module.out_features >= _WIDE * module.in_features:
            # A head that is also the table of the input tokens becomes one of its own: the table is read by rows.
            by_columns = weight.detach().t().contiguous().t()
            module.weight = nn.Parameter(by_columns, requires_grad=weight.requires_grad)
