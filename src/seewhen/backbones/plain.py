"""Whether a layer's matrix lies open: what reads a weight itself must not take packed or patched ones for it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


def plain_weight(module: Any) -> Tensor | None:
    """The matrix by which a linear layer multiplies; None where it is quantised, under an adapter, or elsewhere.

    A quantised weight may say that it is a matrix of floats: torchao's are tensors of a class of their own in the
    layer that was there before, and one of eight-bit floats has its scale beside it.
    """
    weight = getattr(module, "weight", None)
    if type(module) is not nn.Linear or weight is None or type(weight) not in (Tensor, nn.Parameter):
        return None
    return weight if weight.is_floating_point() and not weight.is_meta else None
