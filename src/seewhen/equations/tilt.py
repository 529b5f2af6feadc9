"""HOW: tilting one row of attention towards the relevant image tokens (the paper's Eq. intervention).

A tilt is an additive, non-negative bias on the image columns of the pre-softmax scores of the last
query row. The paper's method uses `|A| w`; its theory uses the exponential tilt `q ~ a exp(lambda w)`,
i.e. the bias `lambda w`. With a KL budget, lambda is solved for each row and head.

Shapes: `scores` (rows, heads, tokens) on the image columns, `attention` likewise (probabilities of the
whole row, so they sum to at most one), `weights` (rows, 1, tokens).
"""

from __future__ import annotations

import torch
from torch import Tensor

# Bisection steps of `solve_strength`: 40 halvings of [0, 64] resolve lambda to 6e-11.
_HALVINGS = 40
_LARGEST = 64.0


def score_bias(scores: Tensor, weights: Tensor, strength: float = 1.0) -> Tensor:
    """Eq. intervention: the bias that turns `A` into `A + |A| w`."""
    return strength * scores.abs() * weights


def exponential_bias(weights: Tensor, strength: float | Tensor) -> Tensor:
    """The theory's tilt: `q ~ a exp(strength * w)`."""
    return strength * weights


def kl_of_tilt(attention: Tensor, weights: Tensor, strength: Tensor) -> Tensor:
    """KL(q || a) of the exponential tilt, `lambda A'(lambda) - A(lambda)`, over the whole attention row.

    `A(lambda) = log sum a exp(lambda w)`; columns without weight (text) enter through `sum a = 1`.
    """
    gain = attention * torch.expm1(strength.unsqueeze(-1) * weights)
    total = gain.sum(dim=-1)
    slope = ((attention + gain) * weights).sum(dim=-1) / (1.0 + total)
    return strength * slope - torch.log1p(total)


def solve_strength(attention: Tensor, weights: Tensor, budget: float) -> Tensor:
    """The largest lambda in [0, 64] whose KL stays within `budget`, per row and head.

    KL is non-decreasing in lambda (its derivative is lambda times a variance), so bisection keeps a
    lower end that never exceeds the budget. No host synchronisation: a fixed number of halvings.
    """
    attention, weights = attention.float(), weights.float()
    low = torch.zeros(attention.shape[:-1], device=attention.device)
    high = torch.full_like(low, _LARGEST)
    low = torch.where(kl_of_tilt(attention, weights, high) <= budget, high, low)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        inside = kl_of_tilt(attention, weights, middle) <= budget
        low = torch.where(inside, middle, low)
        high = torch.where(inside, high, middle)
    return low


def tilted(attention: Tensor, bias: Tensor) -> Tensor:
    """The image columns of the tilted row, from those of the untilted one."""
    after = attention * torch.exp(bias)
    return after / (1.0 + (after - attention).sum(dim=-1, keepdim=True))


def corrected_output(output: Tensor, attention: Tensor, bias: Tensor, values: Tensor) -> Tensor:
    """Tilted attention output from the untilted one: exact, whatever kernel made `output`.

    With `c_i = a_i (exp(b_i) - 1)` on the image columns the tilted row is `(o + sum c_i v_i) / (1 + sum c_i)`.
    All `c_i >= 0`, so nothing cancels. `output` (rows, heads, d), `values` (rows, heads, tokens, d).
    """
    gain = attention * torch.expm1(bias)
    extra = torch.einsum("rhn,rhnd->rhd", gain, values)
    return (output + extra) / (1.0 + gain.sum(dim=-1, keepdim=True))
