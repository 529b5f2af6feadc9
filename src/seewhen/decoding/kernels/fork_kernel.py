"""The end of a pass that went both ways at its last gates: logits of all paths and the gates' entropies in one
reading of the head, then what belongs to the path that was taken.

The head is read from memory once, whether for one row or for sixty, so the gates cost next to nothing there.
Rows are those of `seewhen.decoding.fork`: main and branch rows, then forks of the main rows.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from seewhen.decoding.kernels.gate_kernel import reduced
from seewhen.decoding.kernels.linear_kernel import dot_tile, tile_shape, tile_width

MOST_ROWS = 64  # paths and gates' states together
_WIDE = 2048


@triton.jit
def row_of_path(path_ptr, row, held, main, paths):
    """Where the row of the path is that main row `row` took, of so many; a branch row is where it was."""
    path = tl.load(path_ptr + row, mask=row < main, other=0) % paths
    return tl.where(path > 0, held + (path - 1) * main + row, row)


@triton.jit
def _both(
    x_ptr, w_ptr, logits_ptr, parts_ptr, count, columns, programs, paths, rows,
    block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Some words: logits of the first `paths` rows, and of the others what their entropy needs."""
    program = tl.program_id(0)
    z = dot_tile(x_ptr, w_ptr, program * block_n, count, columns, rows, block_n, block_k, precision, width)
    n, m = program * block_n + tl.arange(0, block_n), tl.arange(0, width)
    live = (n < count)[:, None]
    place = logits_ptr + m[None].to(tl.int64) * count + n[:, None]
    tl.store(place, z.to(logits_ptr.dtype.element_ty), mask=live & (m < paths)[None])
    highest, s, t = reduced(z, live)
    states = rows - paths
    gated = (m >= paths) & (m < rows)
    at = parts_ptr + program + programs * (m - paths)
    tl.store(at, highest, mask=gated)
    tl.store(at + programs * states, s, mask=gated)
    tl.store(at + 2 * programs * states, t, mask=gated)


@triton.jit
def _take(given_ptr, taken_ptr, path_ptr, count, held, main, paths, block: tl.constexpr):
    row, at = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    source = row_of_path(path_ptr, row, held, main, paths).to(tl.int64)
    value = tl.load(given_ptr + source * count + at, mask=at < count, other=0.0)
    tl.store(taken_ptr + row.to(tl.int64) * count + at, value, mask=at < count)


def paths_of(rows: int, held: int, main: int) -> int:
    """How many paths there are when there are so many rows."""
    return 1 + (rows - held) // main


def logits_and_parts(paths: Tensor, states: Iterable[Tensor], head: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (rows, words) of `paths` (rows, d), and what `gate_kernel` needs of all `states`, each (n, d)."""
    x = torch.cat([paths, *states])
    rows, columns = x.shape
    count = head.shape[0]
    # As for several rows of a linear layer: the same sums, so that a path's logits have the same bits.
    block_n, block_k, warps, stages = tile_shape(rows, count, columns, x)
    programs = triton.cdiv(count, block_n)
    logits = torch.empty((len(paths), count), dtype=x.dtype, device=x.device)
    parts = torch.empty((3, rows - len(paths), programs), dtype=torch.float32, device=x.device)
    _both[(programs,)](
        x, head, logits, parts, count, columns, programs, len(paths), rows, block_n=block_n, block_k=block_k,
        precision="ieee" if x.dtype == torch.float32 else "tf32", width=tile_width(rows),
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return logits, parts


def take(given: Tensor, path: Tensor, held: int) -> Tensor:
    """Of `given` (rows, n) those of branches and, for each main row, of the path it took: (held, n)."""
    count = given.shape[1]
    taken = torch.empty((held, count), dtype=given.dtype, device=given.device)
    _take[(held, triton.cdiv(count, _WIDE))](
        given, taken, path, count, held, len(path), paths_of(len(given), held, len(path)), block=_WIDE, num_warps=4
    )
    return taken
