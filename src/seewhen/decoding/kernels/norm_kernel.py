"""Root-mean-square norms in one kernel: seven small ones per norm become one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm(x_ptr, w_ptr, y_ptr, columns, eps: tl.constexpr, offset: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, block)
    live = at < columns
    given = tl.load(x_ptr + row * columns + at, mask=live, other=0.0)
    x = given.to(tl.float32)
    x = x * tl.rsqrt(tl.sum(x * x, 0) / columns + eps)
    w = tl.load(w_ptr + at, mask=live, other=0.0)
    if offset:  # the weight is stored as its distance from one, and applied before rounding
        y = (x * (1.0 + w.to(tl.float32))).to(y_ptr.dtype.element_ty)
    else:
        y = (x.to(given.dtype).to(tl.float32) * w.to(tl.float32)).to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * columns + at, y, mask=live)


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: bool) -> Tensor:
    """`x` (..., d) over its root mean square, times `weight`, or times one plus `weight` with `offset`."""
    columns = x.shape[-1]
    flat = x.reshape(-1, columns).contiguous()
    result = torch.empty_like(flat)
    block = triton.next_power_of_2(columns)
    _norm[(flat.shape[0],)](
        flat, weight, result, columns, eps=eps, offset=offset, block=block, num_warps=8 if block >= 2048 else 4
    )
    return result.view(x.shape)
