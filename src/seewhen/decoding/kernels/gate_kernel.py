"""The gate's entropy without its logits: head product, maximum, sum and entropy in one pass over the head.

Each program multiplies some rows of the head with the hidden states and keeps three numbers per state:
the largest logit `m`, `s = sum exp(z - m)` and `t = sum (z - m) exp(z - m)`. Parts combine exactly, and
the entropy is `log s - t / s`. The reference is `seewhen.equations.when.entropy` of `Backbone.lens`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from seewhen.backbones.plain import plain_weight
from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.decoding.kernels.linear_kernel import dot_tile
from seewhen.decoding.kernels.shared_memory import stages_that_fit

if TYPE_CHECKING:
    from seewhen.decoding.recorder import Recorder
    from seewhen.equations.when import Gate, RunningEntropy

_MOST_ROWS = 16
_BLOCK = 64  # rows of the head per program: measured, see benchmarks/speed.md


@triton.jit
def reduced(z, live):
    """Maximum, sum and weighted sum over the first dimension of `z` (block, rows)."""
    z = tl.where(live, z, float("-inf"))
    m = tl.max(z, 0)
    e = tl.exp(z - m[None])
    return m, tl.sum(e, 0), tl.sum(tl.where(live, (z - m[None]) * e, 0.0), 0)


@triton.jit
def _parts(
    x_ptr, w_ptr, out_ptr, count, columns, programs, rows,
    block_n: tl.constexpr, block_k: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    z = dot_tile(x_ptr, w_ptr, program * block_n, count, columns, rows, block_n, block_k, precision, 16)
    live = (program * block_n + tl.arange(0, block_n)) < count
    m16 = tl.arange(0, 16)
    used = m16 < rows
    m, s, t = reduced(z, live[:, None])
    at = out_ptr + program + programs * m16
    tl.store(at, m, mask=used)
    tl.store(at + programs * rows, s, mask=used)
    tl.store(at + 2 * programs * rows, t, mask=used)


@triton.jit
def _combined(parts_ptr, row, programs, rows, block: tl.constexpr):
    """The entropy of one row, in nats, from all parts."""
    at = tl.arange(0, block)
    live = at < programs
    base = parts_ptr + row * programs + at
    m = tl.load(base, mask=live, other=float("-inf"))
    s = tl.load(base + programs * rows, mask=live, other=0.0)
    t = tl.load(base + 2 * programs * rows, mask=live, other=0.0)
    highest = tl.max(m, 0)
    shift = tl.where(live, m - highest, 0.0)
    scale = tl.where(live, tl.exp(shift), 0.0)
    total = tl.sum(s * scale, 0)
    weighted = tl.sum((t + shift * s) * scale, 0)
    return tl.log(total) - weighted / total


@triton.jit
def _entropy(parts_ptr, out_ptr, programs, rows, block: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out_ptr + row, _combined(parts_ptr, row, programs, rows, block))


@triton.jit
def _decide(
    parts_ptr, valid_ptr, count_ptr, mean_ptr, spread_ptr,
    entropy_ptr, threshold_ptr, gate_ptr, open_ptr, step_ptr, path_ptr,
    programs, rows, layers, states, first,
    layer: tl.constexpr, base: tl.constexpr, fixed: tl.constexpr, threshold: tl.constexpr, sd_factor: tl.constexpr,
    fork: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One row: its entropy from the parts, the threshold, the running statistics, the gate, the record.

    There are parts of `states` states. With `fork` 0, 1, ... this is a path's next gate: which state is the row's
    own depends on the gates before, and the decision becomes a bit of the path.
    """
    row = tl.program_id(0)
    state, path = first + row, 0
    if fork > 0:
        path = tl.load(path_ptr + row)
        state += path * rows
    uncertainty = _combined(parts_ptr, state, programs, states, block) / base
    limit = threshold
    if not fixed:  # Welford's statistics of the tokens before, as in seewhen.equations.when.RunningEntropy
        count = tl.load(count_ptr + row)
        mean = tl.load(mean_ptr + row)
        spread = tl.load(spread_ptr + row)
        sd = tl.sqrt(spread / tl.maximum(count, 1.0))
        limit = tl.where(count > 0, mean + sd_factor * sd, threshold)
        delta = uncertainty - mean
        mean += delta / (count + 1)
        tl.store(count_ptr + row, count + 1)
        tl.store(mean_ptr + row, mean)
        tl.store(spread_ptr + row, spread + delta * (uncertainty - mean))
    open_ = tl.load(valid_ptr + row) & (uncertainty > limit)
    tl.store(open_ptr + row, open_)
    at = (tl.load(step_ptr) * rows + row) * layers + layer
    tl.store(entropy_ptr + at - 1, uncertainty)  # of the layer that made the state
    tl.store(threshold_ptr + at, limit)
    tl.store(gate_ptr + at, open_)
    if fork >= 0:
        tl.store(path_ptr + row, path + (open_.to(tl.int32) << fork))


def _parts_of(states: Tensor, head: Tensor) -> Tensor:
    rows, columns = states.shape
    states, count = states.contiguous(), head.shape[0]
    programs = triton.cdiv(count, _BLOCK)
    parts = torch.empty((3, rows, programs), dtype=torch.float32, device=states.device)
    stages = 3 if states.dtype == torch.float32 else 5
    _parts[(programs,)](
        states, head, parts, count, columns, programs, rows, block_n=_BLOCK, block_k=128,
        precision="ieee" if states.dtype == torch.float32 else "tf32", num_warps=4,
        num_stages=stages_that_fit(stages, (_BLOCK + 16) * 128 * states.element_size(), states.device),
    )  # fmt: skip
    return parts


def entropy(states: Tensor, head: Tensor) -> Tensor:
    """Entropy in nats of `softmax(states @ head.T)` for states (rows, d), head (vocabulary, d): (rows,)."""
    parts = _parts_of(states, head)
    _, rows, programs = parts.shape
    result = torch.empty(rows, dtype=torch.float32, device=states.device)
    _entropy[(rows,)](parts, result, programs, rows, block=triton.next_power_of_2(programs), num_warps=8)
    return result


def decide(
    states: Tensor,
    head: Tensor,
    valid: Tensor,
    gate: Gate,
    history: RunningEntropy | None,
    recorder: Recorder,
    layer: int,
) -> Tensor:
    """The gate of `layer` for states (rows, d) that the final norm has seen: entropy, threshold, running
    statistics and record in two kernels. `valid` (rows,) says which rows have an image at all."""
    return decided(_parts_of(states, head), valid, gate, history, recorder, layer)


def decided(
    parts: Tensor,
    valid: Tensor,
    gate: Gate,
    history: RunningEntropy | None,
    recorder: Recorder,
    layer: int,
    path: Tensor | None = None,
    fork: int = -1,
    first: int = 0,
) -> Tensor:
    """The same from parts (3, states, programs) of the head's product. As gate number `fork` of a `path` (rows,)
    it looks at the state `first + path * rows + row` and adds its bit to the path."""
    _, states, programs = parts.shape
    rows = recorder.rows
    open_ = torch.empty(rows, dtype=torch.bool, device=parts.device)
    entropies, thresholds, gates = (recorder.buffers[name] for name in ("entropy", "threshold", "gate"))
    count, mean, spread = (parts, parts, parts) if history is None else history.tensors()
    _decide[(rows,)](
        parts, valid, count, mean, spread, entropies, thresholds, gates, open_, recorder.step,
        open_ if path is None else path, programs, rows, recorder.layers, states, first, fork=fork,
        layer=layer, base=math.log(gate.base), fixed=gate.threshold is not None,
        threshold=float(gate.start if gate.threshold is None else gate.threshold), sd_factor=float(gate.sd_factor),
        block=triton.next_power_of_2(programs), num_warps=8,
    )  # fmt: skip
    return open_


def takes(states: Tensor, head: Any) -> bool:
    """Whether the kernel computes the entropy of these states under this head."""
    weight = plain_weight(head)
    if weight is None or not kernels_run_on(states.device):
        return False
    return (
        head.bias is None
        and weight.device == states.device
        and weight.dtype == states.dtype
        and weight.is_contiguous()
        and states.shape[0] <= _MOST_ROWS
    )
