"""How relevant each image token is to the current one, in three kernels instead of thirty.

The cosines, one pass over the image features; the weights, which need the row's least cosine; and the weights at
their columns of the cache, where the attention kernel reads them. The reference is `seewhen.equations.where`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seewhen.decoding.kernels.availability import kernels_run_on

_WIDEST = 4096  # numbers of a feature that are under way at once: all of them, mostly
_MOST_TOKENS = 8192  # more of them are too many for the one program that weighs a row


@triton.jit
def _cosine(q_ptr, unit_ptr, cos_ptr, tokens, d, q_row, block: tl.constexpr):
    """One image token: its program waits for the memory once, and there are many of them."""
    row, token, at = tl.program_id(0), tl.program_id(1), tl.arange(0, block)
    length = tl.zeros((block,), tl.float32)
    total = tl.zeros((block,), tl.float32)
    unit_ptr += (row * tokens + token).to(tl.int64) * d
    for start in range(0, d, block):
        inside = (start + at) < d
        unit = tl.load(unit_ptr + start + at, mask=inside, other=0.0)
        q = tl.load(q_ptr + row * q_row + start + at, mask=inside, other=0.0).to(tl.float32)
        length += q * q
        total += q * unit
    norm = tl.maximum(tl.sqrt(tl.sum(length, 0)), 1e-12)
    tl.store(cos_ptr + row * tokens + token, tl.sum(total, 0) / norm)


@triton.jit
def _weigh(
    cos_ptr, valid_ptr, weight_ptr, rows, tokens, scale: tl.constexpr, floor: tl.constexpr, shifted: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0), tl.arange(0, block)
    inside = at < tokens
    weight = tl.zeros((block,), tl.float32)
    if row < rows:  # the rows after these are branches, which are never tilted
        seen = inside & (tl.load(valid_ptr + row * tokens + at, mask=inside, other=0) != 0)
        cos = tl.load(cos_ptr + row * tokens + at, mask=seen, other=0.0)
        if shifted:
            cos -= tl.min(tl.where(seen, cos, float("inf")), 0)
        weight = 1.0 / (1.0 + tl.exp(-scale * cos))
        if shifted:
            weight = floor + (1.0 - floor) * (2.0 * weight - 1.0)
        weight = tl.where(seen, weight, 0.0)
    tl.store(weight_ptr + row * tokens + at, weight, mask=inside)


@triton.jit
def _spread(weight_ptr, column_ptr, valid_ptr, out_ptr, tokens, columns, block: tl.constexpr, wide: tl.constexpr):
    row, at, c = tl.program_id(0), tl.arange(0, block), tl.arange(0, wide)
    for start in range(0, columns, wide):
        tl.store(out_ptr + row * columns + start + c, tl.zeros((wide,), tl.float32), mask=(start + c) < columns)
    tl.debug_barrier()  # all zeros stand before the weights come
    inside = at < tokens
    seen = inside & (tl.load(valid_ptr + row * tokens + at, mask=inside, other=0) != 0)  # padding names column 0
    column = tl.load(column_ptr + row * tokens + at, mask=inside, other=0)
    tl.store(out_ptr + row * columns + column, tl.load(weight_ptr + row * tokens + at, mask=seen), mask=seen)


def weights(
    query: Tensor, units: Tensor, valid: Tensor, all_rows: int, scale: float, floor: float | None
) -> Tensor:
    """Weights (all rows, tokens), zero on padding and in branch rows, of image tokens for `query` (rows, d).

    `units` (rows, tokens, d) have length one. With `floor` None the printed form, otherwise the shifted one.
    """
    rows, tokens, d = units.shape
    cos = torch.empty((rows, tokens), dtype=torch.float32, device=units.device)
    block = min(_WIDEST, triton.next_power_of_2(d))
    _cosine[(rows, tokens)](query, units, cos, tokens, d, query.stride(0), block=block, num_warps=4)
    result = torch.empty((all_rows, tokens), dtype=torch.float32, device=units.device)
    _weigh[(all_rows,)](
        cos, valid, result, rows, tokens, scale=float(scale), floor=float(floor or 0.0), shifted=floor is not None,
        block=triton.next_power_of_2(tokens), num_warps=_warps(tokens),
    )  # fmt: skip
    return result


def spread(weights: Tensor, index: Tensor, valid: Tensor, columns: int) -> Tensor:
    """`weights` (rows, tokens) at the columns `index` where `valid`, zero elsewhere: (rows, columns)."""
    rows, tokens = weights.shape
    result = torch.empty((rows, columns), dtype=torch.float32, device=weights.device)
    _spread[(rows,)](
        weights, index, valid, result, tokens, columns,
        block=triton.next_power_of_2(tokens), wide=1024, num_warps=_warps(tokens),
    )  # fmt: skip
    return result


def _warps(tokens: int) -> int:
    return 4 if tokens <= 1024 else 16


def takes(query: Tensor, units: Tensor, valid: Tensor) -> bool:
    """Whether the kernels compute these weights."""
    return (
        kernels_run_on(units.device)
        and units.device == query.device == valid.device
        and units.dtype == torch.float32
        and units.is_contiguous()
        and valid.is_contiguous()
        and query.stride(-1) == 1
        and units.shape[1] <= _MOST_TOKENS
    )
