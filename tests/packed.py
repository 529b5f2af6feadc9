"""Weights as torchao and quanto keep them: packed, in a layer that looks as it did, saying they are floats."""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

import tiny


class Packed(Tensor):
    """Rows of eight-bit numbers with a scale each. A product with it works, and nothing else does."""

    numbers: Tensor
    scales: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, scales: Tensor) -> Self:
        shape, dtype = numbers.shape, scales.dtype
        made: Self = Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=numbers.device)  # type: ignore[attr-defined]
        made.numbers, made.scales = numbers, scales
        return made

    def __init__(self, numbers: Tensor, scales: Tensor) -> None:
        """All is done above."""

    @classmethod
    def of(cls, weight: Tensor) -> Self:
        """A matrix, packed."""
        scales = weight.detach().abs().amax(dim=1, keepdim=True) / 127
        return cls((weight.detach() / scales).round().to(torch.int8), scales)

    def whole(self) -> Tensor:
        """What it stands for."""
        return self.numbers.to(self.scales.dtype) * self.scales

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["numbers", "scales"], None

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            x, weight, *bias = args
            return func(x, weight.whole(), *bias, **(kwargs or {}))
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.detach.default:
            return cls(args[0].numbers, args[0].scales)
        raise NotImplementedError(f"{func} of a packed weight")


def pair(family: str, **text: Any) -> tuple[Any, Any]:
    """A tiny model whose linear layers, its head among them, are packed, and the same model unpacked."""
    packed, whole = (copy.deepcopy(tiny.model(family, **text)) for _ in range(2))
    for ours, theirs in zip(packed.modules(), whole.modules(), strict=True):
        if type(ours) is nn.Linear:
            weight = Packed.of(ours.weight)
            ours.weight = nn.Parameter(weight, requires_grad=False)
            theirs.weight = nn.Parameter(weight.whole())
    return packed, whole
