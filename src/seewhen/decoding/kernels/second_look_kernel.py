"""MemVR's second look in kernels that stop at once where nothing is to be done.

Judging: the head's product keeps its ten largest logits per block; one program per row finds the ten largest of
all, their entropy and the decision. A row looks again at most once per pass, so where all rows have, the head is
not read any more. Looking: image features as keys, the same as values, and the mix with the feed-forward output;
all three kernels read the decision on the device. The reference is `seewhen.methods.memvr`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from seewhen.decoding.kernels.linear_kernel import dot_tile
from seewhen.decoding.kernels.shared_memory import stages_that_fit

if TYPE_CHECKING:
    from seewhen.decoding.recorder import Recorder

_MOST_CANDIDATES = 32768
_KEPT = 10  # largest logits that count


@triton.jit
def _best(
    x_ptr, w_ptr, used_ptr, out_ptr, count, columns, programs, rows, first: tl.constexpr, kept: tl.constexpr,
    block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """The largest logits of one block of the head, for each row."""
    program, m = tl.program_id(0), tl.arange(0, 16)
    rest = tl.full((16,), 1, tl.int32)
    if not first:
        rest = tl.where(tl.load(used_ptr + m, mask=m < rows, other=1) != 0, 0, 1)
    if tl.max(rest, 0) > 0:
        z = dot_tile(x_ptr, w_ptr, program * block_n, count, columns, rows, block_n, block_k, precision, 16)
        n = tl.arange(0, block_n)
        z = tl.where((program * block_n + n < count)[:, None], z, float("-inf"))
        for place in tl.static_range(kept):
            tl.store(out_ptr + (m * programs + program) * kept + place, tl.max(z, 0), mask=m < rows)
            z = tl.where(n[:, None] == tl.argmax(z, 0)[None], float("-inf"), z)


@triton.jit
def _judge(
    best_ptr, present_ptr, used_ptr, open_ptr, entropy_ptr, gate_ptr, step_ptr, candidates, rows, layers,
    layer: tl.constexpr, first: tl.constexpr, kept: tl.constexpr, base: tl.constexpr, threshold: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """One row: entropy of its largest logits, the decision, the record."""
    row = tl.program_id(0)
    used = False
    if not first:
        used = tl.load(used_ptr + row) != 0
    record = (tl.load(step_ptr) * rows + row) * layers + layer
    if used:
        tl.store(open_ptr + row, False)
        tl.store(gate_ptr + record, False)
    else:
        at = tl.arange(0, block)
        z = tl.load(best_ptr + row * candidates + at, mask=at < candidates, other=float("-inf"))
        highest = tl.max(z, 0)
        total, weighted = 0.0, 0.0
        for _ in tl.static_range(kept):
            below = tl.max(z, 0) - highest
            part = tl.exp(below)
            total += part
            weighted += tl.where(part > 0, below, 0.0) * part
            z = tl.where(at == tl.argmax(z, 0), float("-inf"), z)
        uncertainty = (tl.log(total) - weighted / total) / base
        open_ = (tl.load(present_ptr + row) != 0) & (uncertainty > threshold)
        tl.store(open_ptr + row, open_)
        tl.store(used_ptr + row, open_)
        tl.store(gate_ptr + record, open_)
        tl.store(entropy_ptr + record - 1, uncertainty)  # of the layer that made the state


@triton.jit
def _keys(
    x_ptr, memory_ptr, size_ptr, up_ptr, open_ptr, score_ptr, tokens, d, active: tl.constexpr,
    some: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, token = tl.program_id(0), tl.program_id(1) * some + tl.arange(0, some)
    if tl.load(open_ptr + row) != 0:
        at = tl.arange(0, block)
        total = tl.zeros((some, block), tl.float32)
        where = (row * tokens + token[:, None]).to(tl.int64) * d + at[None]
        for start in range(0, d, block):
            inside = (start + at) < d
            x = tl.load(x_ptr + row * d + start + at, mask=inside, other=0.0).to(tl.float32)
            v = tl.load(memory_ptr + where + start, mask=(token < tokens)[:, None] & inside[None], other=0.0)
            total += x[None] * v
        score = tl.sum(total, 1)
        if active:
            score *= tl.load(up_ptr) / tl.load(size_ptr + row)
            score = score / (1.0 + tl.exp(-score))
        tl.store(score_ptr + row * tokens + token, score, mask=token < tokens)


@triton.jit
def _values(
    score_ptr, memory_ptr, open_ptr, delta_ptr, tokens, d, some: tl.constexpr, block: tl.constexpr
):  # fmt: skip
    row, at = tl.program_id(0), tl.program_id(1) * block + tl.arange(0, block)
    if tl.load(open_ptr + row) != 0:
        t = tl.arange(0, some)
        total = tl.zeros((some, block), tl.float32)
        for start in range(0, tokens, some):
            token = start + t
            score = tl.load(score_ptr + row * tokens + token, mask=token < tokens, other=0.0)
            where = (row * tokens + token[:, None]).to(tl.int64) * d + at[None]
            v = tl.load(memory_ptr + where, mask=(token < tokens)[:, None] & (at < d)[None], other=0.0)
            total += score[:, None] * v
        tl.store(delta_ptr + row * d + at, tl.sum(total, 0), mask=at < d)


@triton.jit
def _mix(
    output_ptr, delta_ptr, open_ptr, mixed_ptr, rows, d,
    ratio: tl.constexpr, tiny: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, at = tl.program_id(0), tl.arange(0, block)
    given = tl.load(output_ptr + row * d + at, mask=at < d, other=0.0)
    result = given
    if tl.load(open_ptr + row, mask=row < rows, other=0) != 0:  # the rows after these are branches
        ffn = given.to(tl.float32)
        delta = tl.load(delta_ptr + row * d + at, mask=at < d, other=0.0)
        scale = (tl.sum(tl.abs(ffn), 0) / d) / tl.maximum(tl.sum(tl.abs(delta), 0) / d, tiny)
        result = ((1.0 - ratio) * ffn + ratio * scale * delta).to(given.dtype)
    tl.store(mixed_ptr + row * d + at, result, mask=at < d)


def judge(
    states: Tensor,
    head: Tensor,
    present: Tensor,
    used: Tensor | None,
    threshold: float,
    recorder: Recorder,
    layer: int,
) -> tuple[Tensor, Tensor]:
    """Which rows look again in `layer`, and which have by now; `used` is None in a pass's first judged layer."""
    rows, columns = states.shape
    states, count = states.contiguous(), head.shape[0]
    first = used is None
    if used is None:
        used = torch.empty(rows, dtype=torch.bool, device=states.device)
    block_n, kept = _block(count), min(_KEPT, count)
    programs = triton.cdiv(count, block_n)
    best = torch.empty((rows, programs, kept), dtype=torch.float32, device=states.device)
    stages = 2 if states.dtype == torch.float32 else 4
    _best[(programs,)](
        states, head, used, best, count, columns, programs, rows, first=first, kept=kept,
        block_n=block_n, block_k=128, precision="ieee" if states.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=stages_that_fit(stages, (block_n + 16) * 128 * states.element_size(), states.device),
    )  # fmt: skip
    open_ = torch.empty_like(used)
    _judge[(rows,)](
        best, present, used, open_, recorder.buffers["top_entropy"], recorder.buffers["gate"], recorder.step,
        programs * kept, rows, recorder.layers,
        layer=layer, first=first, kept=kept, base=math.log(_KEPT), threshold=float(threshold),
        block=triton.next_power_of_2(programs * kept), num_warps=16,
    )  # fmt: skip
    return open_, used


def look(
    states: Tensor, output: Tensor, features: Tensor, size: Tensor, up: Tensor | None, open_: Tensor, ratio: float
) -> Tensor:
    """The feed-forward `output` (all rows, 1, d) with the image mixed in where `open_` (rows,) says so.

    `states` are the layer's inputs, `features` (rows, tokens, d) the memory; `up` is the scale of the keys where
    an activation lies between the products. What scales the values cancels in the scaling to the output.
    """
    rows, tokens, d = features.shape
    scores = torch.empty((rows, tokens), dtype=torch.float32, device=output.device)
    delta = torch.empty((rows, d), dtype=torch.float32, device=output.device)
    mixed = torch.empty_like(output)
    _keys[(rows, triton.cdiv(tokens, 4))](
        states, features, size, size if up is None else up, open_, scores, tokens, d,
        active=up is not None, some=4, block=1024, num_warps=4,
    )  # fmt: skip
    _values[(rows, triton.cdiv(d, 32))](scores, features, open_, delta, tokens, d, some=64, block=32, num_warps=4)
    _mix[(output.shape[0],)](
        output, delta, open_, mixed, rows, d, ratio=float(ratio), tiny=torch.finfo(torch.float32).tiny,
        block=triton.next_power_of_2(d), num_warps=8,
    )  # fmt: skip
    return mixed


def _block(count: int) -> int:
    """Rows of the head per program."""
    return 64 if count <= 131072 else 128


def takes(head: Tensor) -> bool:
    """Whether `judge` can find the largest of so many logits."""
    return triton.cdiv(head.shape[0], _block(head.shape[0])) * _KEPT <= _MOST_CANDIDATES
