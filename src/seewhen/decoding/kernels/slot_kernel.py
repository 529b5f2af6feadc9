"""Writing one token's keys and values into a static cache whose rows are of different lengths."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _write(
    k_ptr, v_ptr, keys_ptr, values_ptr, lengths_ptr, heads, columns,
    k_row, k_head, v_row, v_head, d: tl.constexpr, e: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    place = tl.program_id(0).to(tl.int64) * columns + tl.load(lengths_ptr + row)
    at = tl.arange(0, block)
    k = tl.load(k_ptr + row * k_row + head * k_head + at, mask=at < d, other=0.0)
    tl.store(keys_ptr + place * d + at, k, mask=at < d)
    v = tl.load(v_ptr + row * v_row + head * v_head + at, mask=at < e, other=0.0)
    tl.store(values_ptr + place * e + at, v, mask=at < e)


def write_each(keys: Tensor, values: Tensor, lengths: Tensor, key: Tensor, value: Tensor) -> None:
    """Put key and value (rows, heads, 1, d) into keys and values (rows, heads, columns, d) at column `lengths`
    (rows,) of each row."""
    rows, heads, columns, d = keys.shape
    e = values.shape[-1]
    _write[(rows * heads,)](
        key, value, keys, values, lengths, heads, columns,
        key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        d=d, e=e, block=triton.next_power_of_2(max(d, e)), num_warps=1,
    )  # fmt: skip
