"""Drawing tokens: temperature, nucleus, least share, and noise that is each row's own.

Adding Gumbel noise to scores and taking the largest is sampling from them, exactly. The noise here is a hash of a
row's stream, the number of its token and each entry of the vocabulary: it is made where the scores are, and it is
the same in any batch and at any place in it. The integers are the same everywhere; their logarithms are rounded by
the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MASK = 2**64 - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # those of splitmix64


def signed(z: int) -> int:
    """An unsigned 64-bit number as int64 holds it."""
    z &= _MASK
    return z - 2**64 if z >= 2**63 else z


def keys_at(streams: Tensor, numbers: Tensor) -> Tensor:
    """A key (rows,), int64, for token `numbers` (rows,) of each of the `streams` (rows,)."""
    return _mixed(streams + numbers * signed(_GAMMA))  # wraps around, as it shall


def hashed_uniform(keys: Tensor, width: int) -> Tensor:
    """Numbers between 0 and 1, exclusive: (rows, width), float64, from keys (rows,), int64."""
    counter = torch.arange(1, width + 1, device=keys.device)
    z = _mixed(keys[:, None] + counter * signed(_GAMMA))
    return (_shifted(z, 12).double() + 0.5) * 2.0**-52


def hashed_gumbel(keys: Tensor, width: int) -> Tensor:
    """Gumbel noise (rows, width), float32."""
    return -hashed_uniform(keys, width).log().neg().log().float()


def nucleus(scores: Tensor, top_p: Tensor) -> Tensor:
    """Scores (rows, vocabulary) of the smallest set of tokens with `top_p` (rows,) of the probability, the
    likeliest at least; the others are out. From 1 on nothing is."""
    chances, order = torch.softmax(scores, dim=-1).sort(dim=-1, descending=True, stable=True)
    share = top_p[:, None]
    enough = (chances.cumsum(dim=-1) - chances >= share) & (share < 1.0)
    enough[:, 0] = False  # in float32 a tiny top_p is 0
    out = torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, enough)
    return scores.masked_fill(out, -torch.inf)


def drawn(scores: Tensor, temperature: Tensor, top_p: Tensor, min_p: Tensor, keys: Tensor) -> Tensor:
    """Scores (rows, vocabulary) whose largest entry is the choice of each row; at temperature 0 they stay.

    `temperature`, `top_p`, `min_p` and `keys` are (rows,).
    """
    greedy = temperature <= 0
    warm = scores / temperature.masked_fill(greedy, 1.0)[:, None]
    warm = nucleus(warm, top_p)
    lowest = warm.amax(dim=-1, keepdim=True) + min_p.log()[:, None]  # of 0 it is minus infinity
    warm = warm.masked_fill(warm < lowest, -torch.inf)
    return torch.where(greedy[:, None], scores, warm + hashed_gumbel(keys, scores.shape[-1]))


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * signed(_SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shifted right as if unsigned."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
