"""How attention on the image is shaped, and how far two distributions lie apart: what diagnostics are made of.

`attention` is (..., tokens) on the image columns of a row of attention, probabilities of the whole row; what is
missing to one lies on text. A tilt scales all text alike: the distance of two rows needs the image columns only.
"""

from __future__ import annotations

import torch
from torch import Tensor


def effective_patches(attention: Tensor) -> Tensor:
    """Over how many patches attention is spread, exp(entropy): all of them if even, one if all lies on one."""
    shares = attention / attention.sum(dim=-1, keepdim=True).clamp(min=1e-30)
    return torch.special.entr(shares).sum(dim=-1).exp()


def row_distance(first: Tensor, second: Tensor) -> Tensor:
    """Total variation of two rows of attention whose text has the same proportions."""
    text = (first.sum(dim=-1) - second.sum(dim=-1)).abs()
    return 0.5 * ((first - second).abs().sum(dim=-1) + text)


def divergence(first: Tensor, second: Tensor) -> Tensor:
    """Jensen-Shannon divergence (nats, at most log 2) of distributions given by their logarithms (..., n)."""
    one, other = first.exp(), second.exp()
    middle = (0.5 * (one + other)).clamp(min=1e-38).log()
    terms = one * (first.clamp(min=-1e4) - middle) + other * (second.clamp(min=-1e4) - middle)
    return (0.5 * terms.sum(dim=-1)).clamp(min=0.0)
