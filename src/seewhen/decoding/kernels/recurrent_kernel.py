"""One token through a recurrent layer (gated delta rule): two kernels instead of some sixty.

The first makes, for one value head and a part of its width, everything up to the layer's raw output: the causal
convolution and its SiLU, the gates, queries and keys of length one, decay and update of the state in place.
Programs of one key head share convolution columns, so none may move them on; the second kernel does that, after
all have read them, beside the gated norm, which needs a whole head. Everything is rounded where the stock module
rounds.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_PART = 32  # columns of a head's state per program: enough programs for the memory at one row
_CHANNELS = 256  # convolution channels that one program moves on


@triton.jit
def _convolved(x_ptr, state_ptr, w_ptr, channel, live, width: tl.constexpr):
    """SiLU of the causal convolution at `channel`, rounded as the stock kernels round, in float32."""
    x = tl.load(x_ptr + channel, mask=live, other=0.0)
    total = x.to(tl.float32) * tl.load(w_ptr + channel * width + width - 1, mask=live, other=0.0).to(tl.float32)
    for tap in tl.static_range(width - 1):
        before = tl.load(state_ptr + channel * width + tap + 1, mask=live, other=0.0).to(tl.float32)
        total += before * tl.load(w_ptr + channel * width + tap, mask=live, other=0.0).to(tl.float32)
    total = total.to(x.dtype).to(tl.float32)
    return (total / (1.0 + tl.exp(-total))).to(x.dtype).to(tl.float32)


@triton.jit
def _recur(
    x_ptr, b_ptr, a_ptr, w_ptr, decay_ptr, shift_ptr, conv_ptr, state_ptr, y_ptr,
    heads, groups, channels, scale,
    d: tl.constexpr, e: tl.constexpr, width: tl.constexpr,
    block_d: tl.constexpr, part: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    key_heads, key_head = heads // groups, head // groups
    i, j = tl.arange(0, block_d), tl.program_id(1) * part + tl.arange(0, part)
    deep, wide = i < d, j < e
    x_ptr += row * channels
    conv_ptr += row.to(tl.int64) * channels * width
    q = _convolved(x_ptr, conv_ptr, w_ptr, key_head * d + i, deep, width)
    k = _convolved(x_ptr, conv_ptr, w_ptr, (key_heads + key_head) * d + i, deep, width)
    v = _convolved(x_ptr, conv_ptr, w_ptr, 2 * key_heads * d + head * e + j, wide, width)
    q = q * tl.rsqrt(tl.sum(q * q, 0) + 1e-6) * scale
    k = k * tl.rsqrt(tl.sum(k * k, 0) + 1e-6)
    b = tl.load(b_ptr + row * heads + head)
    beta = (1.0 / (1.0 + tl.exp(-b.to(tl.float32)))).to(b.dtype).to(tl.float32)
    a = tl.load(a_ptr + row * heads + head).to(tl.float32) + tl.load(shift_ptr + head).to(tl.float32)
    soft = tl.where(a > 20.0, a, tl.log(1.0 + tl.exp(tl.minimum(a, 20.0))))
    decay = tl.exp(-tl.exp(tl.load(decay_ptr + head).to(tl.float32)) * soft)
    at = state_ptr + (tl.program_id(0).to(tl.int64) * d + i[:, None]) * e + j[None]
    inside = deep[:, None] & wide[None]
    state = tl.load(at, mask=inside, other=0.0) * decay
    delta = (v - tl.sum(state * k[:, None], 0)) * beta
    state += k[:, None] * delta[None]
    tl.store(at, state, mask=inside)
    y = tl.sum(state * q[:, None], 0)
    tl.store(y_ptr + tl.program_id(0) * e + j, y.to(y_ptr.dtype.element_ty), mask=wide)


@triton.jit
def _finish(
    y_ptr, z_ptr, w_ptr, out_ptr, x_ptr, conv_ptr, normed, channels_in_all,
    eps: tl.constexpr, e: tl.constexpr, width: tl.constexpr,
    block_e: tl.constexpr, block: tl.constexpr, taps: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    if program < normed:  # the gated norm of one head
        j = tl.arange(0, block_e)
        inside = j < e
        given = tl.load(y_ptr + program * e + j, mask=inside, other=0.0)
        y = given.to(tl.float32)
        y = (y * tl.rsqrt(tl.sum(y * y, 0) / e + eps)).to(given.dtype)
        w = tl.load(w_ptr + j, mask=inside, other=0.0)
        scaled = (w.to(tl.float32) * y.to(tl.float32)).to(w.dtype).to(tl.float32)
        z = tl.load(z_ptr + program * e + j, mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + program * e + j, (scaled * (z / (1.0 + tl.exp(-z)))).to(given.dtype), mask=inside)
    else:  # some channels of the convolution move on by one token
        channel = (program - normed) * block + tl.arange(0, block)
        tap = tl.arange(0, taps)
        live = (channel < channels_in_all)[:, None] & (tap < width)[None]
        at = conv_ptr + channel[:, None].to(tl.int64) * width + tap[None]
        later = tl.load(at + 1, mask=live & (tap < width - 1)[None], other=0.0)
        newest = tl.load(x_ptr + channel, mask=channel < channels_in_all, other=0.0)
        tl.debug_barrier()  # all have read what others are going to write
        tl.store(at, tl.where((tap < width - 1)[None], later, newest[:, None]), mask=live)


def recur(
    qkv: Tensor,
    z: Tensor,
    b: Tensor,
    a: Tensor,
    conv: Tensor,
    state: Tensor,
    conv_weight: Tensor,
    decay_log: Tensor,
    shift: Tensor,
    norm_weight: Tensor,
    eps: float,
) -> Tensor:
    """The normed and gated output (rows, heads * e) of one token; `conv` and `state` are updated in place.

    `qkv` (rows, channels), `z` (rows, heads * e), `b` and `a` (rows, heads); `conv` (rows, channels, width);
    `state` (rows, heads, d, e); `conv_weight` (channels, width); `decay_log`, `shift` (heads,); `norm_weight` (e,)
    """
    rows, heads, d, e = state.shape
    channels, width = conv.shape[1:]
    key_heads = (channels - heads * e) // (2 * d)
    raw, result = (torch.empty((rows, heads * e), dtype=qkv.dtype, device=qkv.device) for _ in range(2))
    part = min(_PART, triton.next_power_of_2(e))
    _recur[(rows * heads, triton.cdiv(e, part))](
        qkv, b, a, conv_weight, decay_log, shift, conv, state, raw,
        heads, heads // key_heads, channels, d**-0.5,
        d=d, e=e, width=width, block_d=triton.next_power_of_2(d), part=part, num_warps=4,
    )  # fmt: skip
    normed, moved = rows * heads, triton.cdiv(rows * channels, _CHANNELS)
    _finish[(normed + moved,)](
        raw, z, norm_weight, result, qkv, conv, normed, rows * channels,
        eps=eps, e=e, width=width, block_e=triton.next_power_of_2(e), block=_CHANNELS,
        taps=triton.next_power_of_2(width), num_warps=2,
    )  # fmt: skip
    return result


def takes(conv: Tensor, state: Tensor, conv_weight: Tensor) -> bool:
    """Whether the kernels take a layer with such states."""
    _, heads, d, e = state.shape
    keys = conv.shape[1] - heads * e
    return (
        state.dtype == torch.float32
        and conv.is_contiguous()
        and state.is_contiguous()
        and conv.dtype == conv_weight.dtype
        and conv.shape[1:] == conv_weight.shape
        and keys > 0
        and keys % (2 * d) == 0
        and heads % (keys // (2 * d)) == 0
        and d <= 256
    )
