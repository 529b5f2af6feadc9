"""Streaming linear layers under the stock modules, for the time of a context.

The decoder's `nn.Linear` modules keep their weights and their places; only what they do with a few rows
changes: our kernel instead of the library's, and siblings that read the same input (query, key, value;
gate, up) in one launch. More rows (prefill) go to the stock function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as stock_linear

from seewhen.backbone import Backbone
from seewhen.speed import kernels_run_on
from seewhen.speed.linear_kernel import MOST_ROWS, linear

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class _Group:
    """Linear layers that are called one after the other with the same input."""

    def __init__(self, members: tuple[nn.Linear, ...]) -> None:
        self.members = members
        self.pending: list[Tensor] = []

    def forward(self, index: int) -> Callable[[Tensor], Tensor]:
        """What member `index` does instead of its own forward."""
        own, last = self.members[index], len(self.members) - 1

        def forward(x: Tensor) -> Tensor:
            if x.numel() // x.shape[-1] > MOST_ROWS:
                return stock_linear(x, own.weight, own.bias)
            if index == 0:
                weights = tuple(member.weight for member in self.members)
                biases = tuple(member.bias for member in self.members)
                self.pending = list(linear(x, weights, biases))
            result = self.pending[index]
            if index == last:
                self.pending = []
            return result

        return forward


@contextmanager
def streaming(backbone: Backbone) -> Iterator[None]:
    """Let the decoder's linear layers and its head stream their weights."""
    changed: list[nn.Module] = []
    try:
        for group in _groups(backbone):
            for index, member in enumerate(group.members):
                member.__dict__["forward"] = group.forward(index)
                changed.append(member)
        yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)


def _groups(backbone: Backbone) -> Iterator[_Group]:
    seen: set[nn.Module] = set()
    for parent in backbone.decoder.modules():
        for names in _SIBLINGS:
            members: list[Any] = [getattr(parent, name, None) for name in names]
            if all(_streams(member) for member in members) and _alike(members):
                seen.update(members)
                yield _Group(tuple(members))
    for module in (*backbone.decoder.modules(), backbone.head):
        if _streams(module) and module not in seen:
            seen.add(module)
            yield _Group((module,))


def _streams(module: Any) -> bool:
    """Whether this is a plain linear layer on a GPU: no adapter, no quantisation, no forward of its own."""
    return (
        type(module) is nn.Linear
        and "forward" not in module.__dict__
        and kernels_run_on(module.weight.device)
        and module.weight.is_contiguous()
        and module.weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
    )


def _alike(members: list[Any]) -> bool:
    first = members[0]
    return all(
        member.in_features == first.in_features and (member.bias is None) == (first.bias is None)
        for member in members
    )
