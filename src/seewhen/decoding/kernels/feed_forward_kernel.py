"""The first half of a gated feed-forward layer in one pass: silu(gate x) * (up x), both matrices streamed.

Each program makes the same rows of both products, so neither reaches memory. Both products, the activation
and the result are rounded where the stock modules round them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seewhen.decoding.kernels.linear_kernel import dot_row, dot_tile, tile_shape, tile_width


@triton.jit
def _gated(
    x_ptr, gate_ptr, up_ptr, y_ptr, count, columns, rows, single: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * block_n
    n, m = first + tl.arange(0, block_n), tl.arange(0, width)
    kind = y_ptr.dtype.element_ty
    if single:
        gate = dot_row(x_ptr, gate_ptr, first, count, columns, block_n, block_k).to(kind).to(tl.float32)
        up = dot_row(x_ptr, up_ptr, first, count, columns, block_n, block_k).to(kind)
        lit = (gate / (1.0 + tl.exp(-gate))).to(kind)
        tl.store(y_ptr + n, (lit.to(tl.float32) * up.to(tl.float32)).to(kind), mask=n < count)
    else:
        tile = dot_tile(x_ptr, gate_ptr, first, count, columns, rows, block_n, block_k, precision, width)
        tile = tile.to(kind).to(tl.float32)
        other = dot_tile(x_ptr, up_ptr, first, count, columns, rows, block_n, block_k, precision, width).to(kind)
        lit_tile = (tile / (1.0 + tl.exp(-tile))).to(kind)
        result = (lit_tile.to(tl.float32) * other.to(tl.float32)).to(kind)
        tl.store(y_ptr + m[None] * count + n[:, None], result, mask=(n < count)[:, None] & (m < rows)[None])


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """silu(x @ gate.T) * (x @ up.T) for `x` (..., columns), at most `MOST_ROWS` of `linear_kernel`."""
    columns, count = x.shape[-1], gate.shape[0]
    flat = x.reshape(-1, columns).contiguous()
    rows = flat.shape[0]
    result = torch.empty((rows, count), dtype=x.dtype, device=x.device)
    block_n, block_k, warps, stages = tile_shape(rows, 2 * count, columns, x)
    _gated[(triton.cdiv(count, block_n),)](
        flat, gate, up, result, count, columns, rows, single=rows == 1,
        block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages,
        precision="ieee" if x.dtype == torch.float32 else "tf32", width=tile_width(rows),
    )  # fmt: skip
    return result.view(*x.shape[:-1], count)
