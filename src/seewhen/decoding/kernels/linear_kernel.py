"""Linear layers for a few rows: stream the weights once, at the speed of memory.

A decoding step multiplies every weight matrix with a few vectors, so its time is that of
reading the matrix. Each program reads some rows of the matrix with wide loads and keeps the vectors in
registers. Matrices that take the same input (query, key and value; gate and up) go in one launch: what
is saved is the tail of each launch, during which the memory idles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seewhen.decoding.kernels.shared_memory import stages_that_fit

MOST_ROWS = 32
_MOST_MATRICES = 4
# Tiles for one row and how much longer they take where they fit: the last pass over a matrix' columns may be
# mostly empty (2,560 columns are two passes of 2,048), so a narrower tile can be the faster one.
_OF_ONE_ROW = {(2, 2048, 2, 3): 1.0, (4, 1024, 2, 3): 1.04, (8, 512, 4, 3): 1.055}


@triton.jit
def dot_row(x_ptr, w_ptr, first, count, columns, block_n: tl.constexpr, block_k: tl.constexpr):
    """Rows `first`.. of a matrix times one vector, for which the ordinary units are faster: (block_n,)."""
    n, k = first + tl.arange(0, block_n), tl.arange(0, block_k)
    live = n < count
    total = tl.zeros((block_n, block_k), tl.float32)
    for start in range(0, columns, block_k):
        inside = (start + k) < columns
        where = n[:, None].to(tl.int64) * columns + start + k[None]
        w = tl.load(w_ptr + where, mask=live[:, None] & inside[None], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + start + k, mask=inside, other=0.0)
        total += w.to(tl.float32) * x.to(tl.float32)[None]
    return tl.sum(total, 1)


@triton.jit
def dot_tile(
    x_ptr, w_ptr, first, count, columns, rows,
    block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Rows `first`.. of a matrix times up to `width` vectors, on the matrix units: (block_n, width)."""
    n, k, m = first + tl.arange(0, block_n), tl.arange(0, block_k), tl.arange(0, width)
    live, used = n < count, m < rows
    total = tl.zeros((block_n, width), tl.float32)
    for start in range(0, columns, block_k):
        inside = (start + k) < columns
        where = n[:, None].to(tl.int64) * columns + start + k[None]
        w = tl.load(w_ptr + where, mask=live[:, None] & inside[None], other=0.0, eviction_policy="evict_first")
        x = tl.load(x_ptr + m[None] * columns + start + k[:, None], mask=used[None] & inside[:, None], other=0.0)
        total = tl.dot(w, x, acc=total, input_precision=precision)
    return total


@triton.jit
def _linear(
    x_ptr, w0, w1, w2, w3, b0, b1, b2, b3, y0, y1, y2, y3, n0, n1, n2, n3, columns, rows,
    matrices: tl.constexpr, single: tl.constexpr, biased: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """One vector, or up to `width`, times up to four matrices. Programs are short: each looks at what there is."""
    block = tl.program_id(0)
    w_ptr, b_ptr, y_ptr, count = w0, b0, y0, n0
    if matrices > 1:
        before = tl.cdiv(n0, block_n)
        if block >= before:
            w_ptr, b_ptr, y_ptr, count, block = w1, b1, y1, n1, block - before
            if matrices > 2:
                before = tl.cdiv(n1, block_n)
                if block >= before:
                    w_ptr, b_ptr, y_ptr, count, block = w2, b2, y2, n2, block - before
                    if matrices > 3:
                        before = tl.cdiv(n2, block_n)
                        if block >= before:
                            w_ptr, b_ptr, y_ptr, count, block = w3, b3, y3, n3, block - before
    first = block * block_n
    n, m = first + tl.arange(0, block_n), tl.arange(0, width)
    live, used = n < count, m < rows
    if single:
        total = dot_row(x_ptr, w_ptr, first, count, columns, block_n, block_k)
        if biased:
            total += tl.load(b_ptr + n, mask=live, other=0.0).to(tl.float32)
        tl.store(y_ptr + n, total.to(y_ptr.dtype.element_ty), mask=live)
    else:
        tile = dot_tile(x_ptr, w_ptr, first, count, columns, rows, block_n, block_k, precision, width)
        if biased:
            tile += tl.load(b_ptr + n, mask=live, other=0.0).to(tl.float32)[:, None]
        where = m[None] * count + n[:, None]
        tl.store(y_ptr + where, tile.to(y_ptr.dtype.element_ty), mask=live[:, None] & used[None])


def linear(x: Tensor, weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]) -> tuple[Tensor, ...]:
    """`x` (..., columns), at most `MOST_ROWS` vectors, times each of one to four matrices (count, columns)."""
    columns = x.shape[-1]
    flat = x.reshape(-1, columns).contiguous()
    rows = flat.shape[0]
    results = [torch.empty((rows, weight.shape[0]), dtype=x.dtype, device=x.device) for weight in weights]
    counts = [weight.shape[0] for weight in weights]
    biased = biases[0] is not None
    padded = [
        [*given, *([given[0]] * (_MOST_MATRICES - len(given)))]
        for given in (weights, biases if biased else weights, results)
    ]
    counts += [0] * (_MOST_MATRICES - len(counts))
    single = rows == 1
    block_n, block_k, warps, stages = tile_shape(rows, sum(counts), columns, x)
    _linear[(sum(triton.cdiv(count, block_n) for count in counts),)](
        flat, *padded[0], *padded[1], *padded[2], *counts, columns, rows, matrices=len(weights),
        single=single, biased=biased, block_n=block_n, block_k=block_k, num_warps=warps, num_stages=stages,
        precision="ieee" if x.dtype == torch.float32 else "tf32", width=tile_width(rows),
    )  # fmt: skip
    return tuple(result.view(*x.shape[:-1], -1) for result in results)


def tile_width(rows: int) -> int:
    """Vectors of a tile for so many rows: the matrix units take no fewer than sixteen."""
    return max(16, triton.next_power_of_2(rows))


def tile_shape(rows: int, count: int, columns: int, x: Tensor) -> tuple[int, int, int, int]:
    """Tile (rows, columns), warps and pipeline stages for vectors like `x`: measured, see benchmarks/speed.md."""
    if rows == 1:
        if columns > 8192:
            return (4, 1024, 2, 3)
        return min(_OF_ONE_ROW, key=lambda tile: _OF_ONE_ROW[tile] * -(-columns // tile[1]) * tile[1])
    if x.dtype == torch.float32:  # twice the bytes: shared memory is finite
        block_n, block_k, stages = 64, 64, 2
    else:
        block_n, block_k, stages = (64, 256, 5) if count <= 8192 else (64, 128, 3)
    tile = (block_n + tile_width(rows)) * block_k * x.element_size()
    return block_n, block_k, 4, stages_that_fit(stages, tile, x.device)
