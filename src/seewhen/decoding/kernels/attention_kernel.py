"""Attention of one query row over a static cache, with the tilt inside: one pass over keys and values.

Each program takes one key head of one row and a stretch of columns. Scores, tilt bias and the running
softmax (`m`, `l`, output) stay in registers; with several stretches a second small kernel combines them.
The tilt is a weight per column (zero on text), a gate per row and a strength; where the weight or the
gate is zero the bias is exactly zero, so a closed gate gives the very bits of no tilt. The log-sum-exp
of the (tilted) scores comes out too. The reference is `seewhen.equations.tilt` on `AttentionCall`.

Forks of a row (`seewhen.decoding.fork`) are further queries of its program, so keys and values are read once for
all of them. The matrix units take sixteen queries at a time, of which one row has few.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from seewhen.decoding.kernels.fork_kernel import paths_of
from seewhen.decoding.kernels.shared_memory import stages_that_fit

_PROGRAMS = 264  # two for each multiprocessor of the largest cards keep the memory busy
_BLOCK = 64
_MOST_QUERIES = 32  # of one key head and row, with all its forks
_LOWEST = -60000.0  # an additive mask at or below this hides: the least float16 is -65504


@triton.jit
def _attend(
    q_ptr, k_ptr, v_ptr, mask_ptr, weight_ptr, gate_ptr, out_ptr, lse_ptr, new_k_ptr, new_v_ptr, newest_ptr,
    key_heads, columns, stretch, held, main,
    q_row, q_head, k_row, k_head, k_column, v_row, v_head, v_column, mask_row, weight_row,
    new_k_row, new_k_head, new_v_row, new_v_head,
    scaling: tl.constexpr, strength: tl.constexpr,
    groups: tl.constexpr, d: tl.constexpr, masked: tl.constexpr, additive: tl.constexpr,
    form: tl.constexpr, split: tl.constexpr, block: tl.constexpr, whole: tl.constexpr, lowest: tl.constexpr,
    precision: tl.constexpr, paths: tl.constexpr, width: tl.constexpr, fresh: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    row = row.to(tl.int64)  # many rows of a long cache are more than 2^31 numbers
    part = tl.program_id(1)
    g, e, c = tl.arange(0, width), tl.arange(0, d), tl.arange(0, block)
    used, of = g < groups * paths, row  # the row that each query is
    if paths > 1:
        path = g // groups
        of = tl.where(path > 0, held + (path - 1) * main + row, row)
        used = g < tl.where(row < main, groups * paths, groups)  # branch rows have no forks
        g = g % groups
    q_at = q_ptr + (of * q_row + (head * groups + g) * q_head)[:, None] + e[None]
    q = tl.load(q_at, mask=used[:, None], other=0.0)
    open_ = tl.zeros((width,), tl.float32)
    if form > 0:
        open_ += tl.load(gate_ptr + of + 0 * g, mask=used, other=0).to(tl.float32) * strength
    highest = tl.full((width,), float("-inf"), tl.float32)
    total = tl.zeros((width,), tl.float32)
    output = tl.zeros((width, d), tl.float32)
    first = part * stretch
    last = tl.minimum(first + stretch, columns)
    newest = -1
    if fresh:  # keys and values of the newest token, a word, differ by path and are not yet in the cache
        newest = tl.load(newest_ptr)
        here = (first <= newest + 0 * g) & (newest + 0 * g < last)
        own = (used & here)[:, None]
        new_k_at = new_k_ptr + (of * new_k_row + head * new_k_head)[:, None] + e[None]
        new_v_at = new_v_ptr + (of * new_v_row + head * new_v_head)[:, None] + e[None]
        fit = q.to(tl.float32) * tl.load(new_k_at, mask=own, other=0.0).to(tl.float32)
        highest = tl.where(here, tl.sum(fit, 1) * scaling, highest)
        total = tl.where(here, 1.0, total)
        output += tl.load(new_v_at, mask=own, other=0.0).to(tl.float32)
    if masked:  # what is hidden to the end of a stretch (the cache's empty end, all of a padded one) is not read
        s = tl.arange(0, whole)
        hidden = tl.load(
            mask_ptr + row * mask_row + first + s, mask=(s < stretch) & (first + s < columns), other=lowest
        )
        last = tl.minimum(last, first + 1 + tl.max(tl.where(hidden.to(tl.float32) > lowest, s, -1), 0))
    for start in range(first, last, block):
        at = start + c
        inside = (at < last) & (at != newest)
        k_at = k_ptr + row * k_row + head * k_head + at[None].to(tl.int64) * k_column + e[:, None]
        k = tl.load(k_at, mask=inside[None], other=0.0)
        scores = tl.dot(q, k, input_precision=precision) * scaling
        if form > 0:
            lift = tl.load(weight_ptr + row * weight_row + at, mask=inside, other=0.0)[None] * open_[:, None]
            if form == 1:
                scores += tl.abs(scores) * lift
            else:
                scores += lift
        if masked:
            seen = tl.load(mask_ptr + row * mask_row + at, mask=inside, other=0)
            if additive:
                scores += seen.to(tl.float32)[None]
            else:
                scores = tl.where(seen[None], scores, float("-inf"))
        scores = tl.where(inside[None], scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        safe = tl.where(higher == float("-inf"), 0.0, higher)  # all columns so far are hidden
        p = tl.exp(scores - safe[:, None])
        shrink = tl.exp(highest - safe)
        total = total * shrink + tl.sum(p, 1)
        v_at = v_ptr + row * v_row + head * v_head + at[:, None].to(tl.int64) * v_column + e[None]
        v = tl.load(v_at, mask=inside[:, None], other=0.0)
        output = output * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=precision)
        highest = higher
    heads = key_heads * groups
    query = of * heads + head * groups + g
    lse = tl.where(total > 0, highest + tl.log(total), float("-inf"))
    if split:
        splits = tl.num_programs(1)
        where = (query * splits + part).to(tl.int64)
        tl.store(lse_ptr + where, lse, mask=used)
        scale = tl.where(total > 0, 1.0 / total, 0.0)
        tl.store(out_ptr + where[:, None] * d + e[None], output * scale[:, None], mask=used[:, None])
    else:
        tl.store(lse_ptr + query, lse, mask=used)
        result = output / total[:, None]
        tl.store(out_ptr + query[:, None] * d + e[None], result.to(out_ptr.dtype.element_ty), mask=used[:, None])


@triton.jit
def _combine(part_ptr, lse_part_ptr, out_ptr, lse_ptr, splits, d: tl.constexpr, block: tl.constexpr):
    query = tl.program_id(0)
    s, e = tl.arange(0, block), tl.arange(0, d)
    live = s < splits
    lse = tl.load(lse_part_ptr + query * splits + s, mask=live, other=float("-inf"))
    highest = tl.max(lse, 0)
    scale = tl.exp(lse - highest)
    total = tl.sum(scale, 0)
    where = (query * splits + s[:, None]).to(tl.int64) * d + e[None]
    parts = tl.load(part_ptr + where, mask=live[:, None], other=0.0)
    result = tl.sum(parts * scale[:, None], 0) / total
    tl.store(out_ptr + query * d + e, result.to(out_ptr.dtype.element_ty))
    tl.store(lse_ptr + query, highest + tl.log(total))


FORMS = {"none": 0, "score": 1, "exponential": 2}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    weights: Tensor | None = None,
    gate: Tensor | None = None,
    form: str = "none",
    strength: float = 1.0,
    main: int | None = None,
    fresh: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Output (rows, 1, heads, d) and log-sum-exp (rows, heads) of query (rows, heads, 1, d).

    `key` and `value` are (rows, key heads, columns, d); `mask` (rows, 1, 1, columns), boolean or additive;
    `weights` (rows, columns) and `gate` (rows,) say how far each column is tilted. There may be more
    queries than rows of keys: forks of the first `main` rows, which share what is theirs. `fresh` are keys and
    values of the newest token (queries, key heads, 1, d) and its column (1,), where forks differ in them; it is
    visible and not tilted.
    """
    rows, heads, _, d = query.shape
    held, key_heads, columns, _ = key.shape
    groups, paths = heads // key_heads, 1 if main is None else paths_of(rows, held, main)
    blocks = triton.cdiv(columns, _BLOCK)
    stretch = _BLOCK * triton.cdiv(blocks, min(blocks, triton.cdiv(_PROGRAMS, held * key_heads)))
    splits = triton.cdiv(columns, stretch)
    split = splits > 1
    output = torch.empty((rows, 1, heads, d), dtype=query.dtype, device=query.device)
    lse = torch.empty((rows, heads), dtype=torch.float32, device=query.device)
    parts, lse_parts = output, lse
    if split:
        parts = torch.empty((rows, heads, splits, d), dtype=torch.float32, device=query.device)
        lse_parts = torch.empty((rows, heads, splits), dtype=torch.float32, device=query.device)
    additive = mask is not None and mask.dtype != torch.bool
    seen = lse if mask is None else mask[:, 0, 0]
    weights = lse if weights is None else weights
    stages = 2 if query.dtype == torch.float32 else 3
    _attend[(held * key_heads, splits)](
        query, key, value, seen, weights, lse if gate is None else gate, parts, lse_parts, *(fresh or (lse,) * 3),
        key_heads, columns, stretch, held, main or 1,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), key.stride(2),
        value.stride(0), value.stride(1), value.stride(2),
        0 if seen.shape[0] == 1 else seen.stride(0), weights.stride(0),
        *((t.stride(at) for t in fresh[:2] for at in (0, 1)) if fresh else (0,) * 4),
        scaling=float(scaling), strength=float(strength),
        groups=groups, d=d, masked=mask is not None, additive=additive, form=FORMS[form],
        split=split, block=_BLOCK, whole=triton.next_power_of_2(stretch), lowest=_LOWEST if additive else 0,
        precision="ieee" if query.dtype == torch.float32 else "tf32", paths=paths,
        width=max(16, triton.next_power_of_2(paths * groups)), fresh=fresh is not None, num_warps=4,
        num_stages=stages_that_fit(stages, 2 * _BLOCK * d * key.element_size(), key.device),
    )  # fmt: skip
    if split:
        block = triton.next_power_of_2(splits)
        _combine[(rows * heads,)](parts, lse_parts, output, lse, splits, d=d, block=block, num_warps=4)
    return output, lse


def takes_heads(heads: int, key: Tensor, paths: int = 1) -> bool:
    """Whether the kernel takes so many query heads on so many paths over keys (rows, key heads, columns, d)."""
    d = key.shape[-1]
    return (
        d == triton.next_power_of_2(d)
        and d >= 16
        and d * key.element_size() <= 512  # more does not fit into shared memory
        and paths * (heads // key.shape[1]) <= _MOST_QUERIES
    )


def takes(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether the kernel takes this call."""
    return (
        query.shape[2] == 1
        and takes_heads(query.shape[1], key)
        and key.shape == value.shape  # some heads have narrower values
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        and (mask is None or (mask.dim() == 4 and mask.shape[1] == 1 and mask.stride(-1) == 1))
    )
