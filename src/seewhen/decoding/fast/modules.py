"""Our kernels under the stock modules, for the time of a context.

The decoder's linear layers and norms keep their weights and their places; only what they do with a few
rows changes. Linear layers stream their weights, and siblings that read the same input (query, key,
value; gate, up) do so in one launch; norms and rotary embeddings are one kernel each, a gated
feed-forward layer makes its inner values in one, and a recurrent layer its token in two. More rows
(prefill) go the stock way. Norms, feed-forward and recurrent layers are changed only where the kernel
gives what the module itself gives on a probe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as stock_linear

from seewhen.backbones.backbone import Backbone
from seewhen.backbones.plain import plain_weight
from seewhen.decoding.fast.recurrent import recurrent_layers
from seewhen.decoding.fork import open_fork
from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.decoding.kernels.feed_forward_kernel import gated
from seewhen.decoding.kernels.linear_kernel import MOST_ROWS, linear
from seewhen.decoding.kernels.norm_kernel import rms_norm
from seewhen.decoding.kernels.rotary_kernel import turning

_WIDEST = 65536  # values in the rows of one step: wide enough for any decoder, too few for a prompt
_SIBLINGS = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
)


class _Group:
    """Linear layers that are called one after the other with the same input."""

    def __init__(self, members: tuple[nn.Linear, ...]) -> None:
        self.members = members
        self.waiting = threading.local()  # results for the members to come, of each thread's own pass

    def forward(self, index: int) -> Callable[[Tensor], Tensor]:
        """What member `index` does instead of its own forward."""
        own, last = self.members[index], len(self.members) - 1

        def forward(x: Tensor) -> Tensor:
            if x.numel() // x.shape[-1] > MOST_ROWS:
                return stock_linear(x, own.weight, own.bias)
            if index == 0:
                weights = tuple(member.weight for member in self.members)
                biases = tuple(member.bias for member in self.members)
                self.waiting.results = linear(x, weights, biases)
            result: Tensor = self.waiting.results[index]
            if index == last:
                self.waiting.results = ()
            return result

        return forward


@contextmanager
def swapped(backbone: Backbone) -> Iterator[None]:
    """Our kernels in the decoder's linear, feed-forward and recurrent layers, norms, rotary embeddings, head."""
    changed: list[nn.Module] = []
    try:
        for layer, forward in recurrent_layers(backbone):
            layer.__dict__["forward"] = forward
            changed.append(layer)
        for layer, forward in _feed_forwards(backbone):
            layer.__dict__["forward"] = forward
            changed.append(layer)
        for group in _groups(backbone):
            for index, member in enumerate(group.members):
                member.__dict__["forward"] = group.forward(index)
                changed.append(member)
        if backbone.head in changed:
            backbone.head.__dict__["forward"] = _head_forward(backbone.head, backbone.head.forward)
        for norm, forward in _norms(backbone):
            norm.__dict__["forward"] = forward
            changed.append(norm)
        with turning(backbone.decoder):
            yield
    finally:
        for module in changed:
            module.__dict__.pop("forward", None)


def _head_forward(head: Any, plain: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The head, which also decides the gates that a step has left to its end."""

    def forward(x: Tensor) -> Tensor:
        fork = open_fork()
        return plain(x) if fork is None else fork.decided(x, head.weight)

    return forward


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


def _feed_forwards(backbone: Backbone) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """Feed-forward layers that are down(silu(gate(x)) * up(x)), each with its new forward."""
    known: dict[tuple[Any, ...], bool] = {}
    for module in backbone.decoder.modules():
        members: list[Any] = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
        if not all(_streams(member) for member in members) or "forward" in module.__dict__:
            continue
        gate, up, down = members
        if gate.weight.shape != up.weight.shape or gate.bias is not None or up.bias is not None:
            continue
        kind = (type(module), str(getattr(module, "act_fn", None)), gate.weight.dtype)
        if kind not in known:
            known[kind] = _is_gated(module, gate, up, down)
        if known[kind]:
            yield module, _gated_forward(module, gate, up, down)


@torch.no_grad()
def _is_gated(module: nn.Module, gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> bool:
    weight = gate.weight
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn((1, 1, weight.shape[1]), generator=generator).to(weight.device, weight.dtype)
    try:
        expected = module(probe)
    except TypeError:  # it wants more than one input
        return False
    error = (down(gated(probe, gate.weight, up.weight)) - expected).float().norm() / expected.float().norm()
    return bool(error < 4 * torch.finfo(weight.dtype).eps)


def _gated_forward(
    module: nn.Module, gate: nn.Linear, up: nn.Linear, down: nn.Linear
) -> Callable[[Tensor], Tensor]:
    stock = module.forward

    def forward(x: Tensor) -> Tensor:
        if x.numel() // x.shape[-1] > MOST_ROWS:
            result: Tensor = stock(x)
            return result
        inner: Tensor = down(gated(x, gate.weight, up.weight))
        return inner

    return forward


def _norms(backbone: Backbone) -> Iterator[tuple[nn.Module, Callable[[Tensor], Tensor]]]:
    """The norms that one of the kernel's two forms reproduces, each with its new forward."""
    known: dict[tuple[Any, ...], bool | None] = {}
    for module in backbone.decoder.modules():
        weight, eps = getattr(module, "weight", None), _epsilon(module)
        if eps is None or not isinstance(weight, Tensor) or weight.dim() != 1 or "forward" in module.__dict__:
            continue
        if not kernels_run_on(weight.device):
            continue
        kind = (type(module), weight.shape, weight.dtype, eps)
        if kind not in known:
            known[kind] = _form(module, weight, eps)
        if known[kind] is not None:
            yield module, _norm_forward(module, weight, eps, bool(known[kind]))


def _epsilon(module: nn.Module) -> float | None:
    """The epsilon of a root-mean-square norm; None for other modules."""
    if not type(module).__name__.endswith("RMSNorm"):
        return None
    found = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return float(found) if isinstance(found, int | float) else None


@torch.no_grad()
def _form(module: nn.Module, weight: Tensor, eps: float) -> bool | None:
    """Whether the weight is an offset from one; None where neither form agrees with the module."""
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn((3, weight.shape[0]), generator=generator).to(weight.device, weight.dtype)
    try:
        expected = module(probe)
    except TypeError:  # it wants more than one input (a gated norm)
        return None
    for offset in (False, True):
        error = (rms_norm(probe, weight, eps, offset) - expected).float().norm() / expected.float().norm()
        if error < 4 * torch.finfo(weight.dtype).eps:
            return offset
    return None


def _norm_forward(module: nn.Module, weight: Tensor, eps: float, offset: bool) -> Callable[[Tensor], Tensor]:
    stock = module.forward

    def forward(x: Tensor) -> Tensor:
        if x.dtype != weight.dtype or x.numel() > MOST_ROWS * _WIDEST:
            return stock(x)
        return rms_norm(x, weight, eps, offset)

    return forward


def _streams(module: Any) -> bool:
    """Whether this is a plain linear layer on a GPU: no adapter, no quantisation, no forward of its own."""
    weight = plain_weight(module)
    return (
        weight is not None
        and "forward" not in module.__dict__
        and kernels_run_on(weight.device)
        and weight.is_contiguous()
        and weight.dtype in (torch.bfloat16, torch.float16, torch.float32)
    )


def _alike(members: list[Any]) -> bool:
    first = members[0]
    return all(
        member.in_features == first.in_features and (member.bias is None) == (first.bias is None)
        for member in members
    )
