"""Rotary position embedding of one token's queries and keys in one kernel: ten small ones become one.

Attention classes call a function of their modelling file, `apply_rotary_pos_emb(q, k, cos, sin)`. For the
time of a context that name stands for ours, which takes single tokens on a GPU and hands everything else
to the stock function. Ours rounds where the stock one rounds, so both give the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.decoding.kernels.linear_kernel import MOST_ROWS

_NAME = "apply_rotary_pos_emb"


@triton.jit
def _turn(
    q_ptr, k_ptr, cos_ptr, sin_ptr, q_out, k_out, heads, key_heads, angle_row,
    q_row, q_head, k_row, k_head, d: tl.constexpr, turned: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    both = heads + key_heads
    row, head = tl.program_id(0) // both, tl.program_id(0) % both
    x_ptr, y_ptr = q_ptr + row * q_row + head * q_head, q_out + (row * heads + head) * d
    if head >= heads:
        head -= heads
        x_ptr, y_ptr = k_ptr + row * k_row + head * k_head, k_out + (row * key_heads + head) * d
    at = tl.arange(0, block)
    half: tl.constexpr = turned // 2
    inside, turns = at < d, at < turned
    x = tl.load(x_ptr + at, mask=inside, other=0.0)
    other = tl.load(x_ptr + tl.where(at < half, at + half, at - half), mask=turns, other=0.0).to(tl.float32)
    other = tl.where(at < half, -other, other)
    cos = tl.load(cos_ptr + row * angle_row + at, mask=turns, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * angle_row + at, mask=turns, other=0.0).to(tl.float32)
    # The two products are rounded to the model's type before they are added, as PyTorch does.
    along, across = (x.to(tl.float32) * cos).to(x.dtype), (other * sin).to(x.dtype)
    result = (along.to(tl.float32) + across.to(tl.float32)).to(x.dtype)
    tl.store(y_ptr + at, tl.where(turns, result, x), mask=inside)


def rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """q (rows, heads, 1, d) and k (rows, key heads, 1, d), turned by angles (rows or 1, 1, e); e <= d."""
    rows, heads, _, d = q.shape
    key_heads = k.shape[1]
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    _turn[(rows * (heads + key_heads),)](
        q, k, cos, sin, q_out, k_out, heads, key_heads, 0 if cos.shape[0] == 1 else cos.stride(0),
        q.stride(0), q.stride(1), k.stride(0), k.stride(1),
        d=d, turned=cos.shape[-1], block=triton.next_power_of_2(d), num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return q_out, k_out


def takes(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> bool:
    """Whether the kernel takes this call."""
    return (
        q.dim() == k.dim() == 4
        and q.shape[2] == k.shape[2] == 1
        and q.shape[0] <= MOST_ROWS
        and kernels_run_on(q.device)
        and q.dtype == k.dtype == cos.dtype == sin.dtype
        and q.stride(-1) == k.stride(-1) == cos.stride(-1) == sin.stride(-1) == 1
        and cos.shape == sin.shape
        and cos.stride() == sin.stride()
        and cos.dim() == 3
        and cos.shape[0] in (1, q.shape[0])
        and not q.requires_grad
    )


class _Place:
    """The function of one modelling file, replaced while at least one context wants it."""

    def __init__(self, module: Any) -> None:
        self.module, self.stock, self.users = module, getattr(module, _NAME), 0

    def ours(self) -> Callable[..., tuple[Tensor, Tensor]]:
        stock = self.stock

        def apply_rotary_pos_emb(
            q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any
        ) -> tuple[Tensor, Tensor]:
            if args or kwargs or not takes(q, k, cos, sin):
                result: tuple[Tensor, Tensor] = stock(q, k, cos, sin, *args, **kwargs)
                return result
            return rotate(q, k, cos, sin)

        return apply_rotary_pos_emb


_PLACES: dict[str, _Place] = {}  # sessions in other threads may want the same file at the same time
_LOCK = Lock()


@contextmanager
def turning(decoder: nn.Module) -> Iterator[None]:
    """Our rotation in the modelling files of the decoder's attention layers, where it equals theirs."""
    names = [name for name in _files(decoder.modules()) if _agrees(getattr(sys.modules[name], _NAME))]
    with _LOCK:
        for name in names:
            place = _PLACES.setdefault(name, _Place(sys.modules[name]))
            if place.users == 0:
                setattr(place.module, _NAME, place.ours())
            place.users += 1
    try:
        yield
    finally:
        with _LOCK:
            for name in names:
                place = _PLACES[name]
                place.users -= 1
                if place.users == 0:
                    setattr(place.module, _NAME, place.stock)
                    del _PLACES[name]


def _files(modules: Iterable[nn.Module]) -> list[str]:
    """Names of the modelling files whose attention layers call the function."""
    found = {
        type(module).__module__
        for module in modules
        if hasattr(module, "q_proj") and hasattr(module, "k_proj") and kernels_run_on(_device(module))
    }
    return sorted(name for name in found if callable(getattr(sys.modules.get(name), _NAME, None)))


def _device(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _agrees(stock: Callable[..., Any]) -> bool:
    """Whether the function turns halves, over all or the first dimensions, as ours does."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 3, 1, 8), (2, 1, 1, 8), (2, 1, 8), (2, 1, 8))
    q, k, cos, sin = (torch.randn(shape, generator=generator) for shape in shapes)
    known = []
    for part in (8, 4):
        angles = cos[..., :part], sin[..., :part]
        try:
            theirs = stock(q, k, *angles)
        except (RuntimeError, TypeError):  # it wants something else, or cannot turn only a part
            continue
        known += [
            torch.allclose(given, _plain(x, *angles), atol=1e-6) for given, x in zip(theirs, (q, k), strict=True)
        ]
    return bool(known) and all(known)


def _plain(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    turned, kept = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    a, b = turned.chunk(2, dim=-1)
    return torch.cat((turned * cos[:, None] + torch.cat((-b, a), dim=-1) * sin[:, None], kept), dim=-1)
