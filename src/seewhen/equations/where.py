"""WHERE: how relevant each image token is to the current token (the paper's Eq. similarity).

Two published forms exist. The paper prints `w = sigmoid(cos)`, which is almost flat because cosines
between words and patches are small. The released code computes `w = sigmoid(100 (cos - min cos))`,
which is sharp and never below one half. Both are here; `floor` names the weight of the least similar
patch so that the "at least one half everywhere" of the released form is visible and can be changed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unit(vectors: Tensor) -> Tensor:
    """The vectors (..., d) at length one, in float32."""
    return torch.nn.functional.normalize(vectors.float(), dim=-1, eps=1e-12)


def cosine(query: Tensor, features: Tensor, valid: Tensor) -> Tensor:
    """Cosine of `query` (rows, d) with each of `features` (rows, tokens, d), in float32; 0 where not valid."""
    return cosine_to_units(query, unit(features), valid)


def cosine_to_units(query: Tensor, units: Tensor, valid: Tensor) -> Tensor:
    """The same for features that have length one already: image features, once per prompt."""
    return torch.einsum("rd,rnd->rn", unit(query), units).masked_fill(~valid, 0.0)


def sigmoid_relevance(cos: Tensor, valid: Tensor, scale: float = 1.0) -> Tensor:
    """The printed equation: `sigmoid(scale * cos)`; 0 on padding."""
    return torch.sigmoid(scale * cos).masked_fill(~valid, 0.0)


def shifted_relevance(cos: Tensor, valid: Tensor, scale: float = 100.0, floor: float = 0.5) -> Tensor:
    """The released code: `sigmoid(scale * (cos - min cos))`, rescaled to start at `floor`; 0 on padding.

    The minimum runs over the row's own image tokens. With `floor=0.5` the result is exactly the
    sigmoid; with `floor=0` the least similar patch gets no weight at all.
    """
    # A row without an image has no valid token: its minimum is +inf, its weights are masked below.
    lowest = cos.masked_fill(~valid, torch.inf).amin(dim=-1, keepdim=True)
    sharp = torch.sigmoid(scale * (cos - lowest))
    weights = floor + (1.0 - floor) * (2.0 * sharp - 1.0)
    return weights.masked_fill(~valid, 0.0)


def tail_mean(states: Tensor, tail: Tensor) -> Tensor:
    """Mean of `states` (rows, positions, d) over the positions marked in `tail` (rows, positions).

    The released code uses it as the query vector in prefill: the prompt tokens after the image.
    A row with an empty tail (the image ends the prompt) uses its last position.
    """
    weights = tail.to(states.dtype).unsqueeze(-1)
    count = weights.sum(dim=1)
    mean = (states * weights).sum(dim=1) / count.clamp(min=1)
    return torch.where(count > 0, mean, states[:, -1])
