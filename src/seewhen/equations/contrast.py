"""CONTRAST: combining the image row with a second row (the paper's Eq. decoding), and the plausibility cut.

All functions take logits of the last position, (rows, vocabulary), and return scores of the same
shape that ordinary logits processors and samplers can go on with; `-inf` marks removed tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seewhen.errors import InvalidMethod


def plausible(logits: Tensor, beta: float) -> Tensor:
    """Mask of the tokens with `p >= beta * max p` (the adaptive plausibility constraint)."""
    return logits >= logits.amax(dim=-1, keepdim=True) + math.log(beta)


def cut(scores: Tensor, logits: Tensor, beta: float | None) -> Tensor:
    """`scores` with the tokens that are implausible under `logits` removed; no cut for `beta` None or 0."""
    return scores if not beta else scores.masked_fill(~plausible(logits, beta), -math.inf)


def log_prob_contrast(main: Tensor, other: Tensor, coefficient: float, beta: float | None = 0.1) -> Tensor:
    """`g lp+ - (g - 1) lp-` with the plausibility cut: what PAI's and CAI's released code compute."""
    main, other = torch.log_softmax(main.float(), dim=-1), torch.log_softmax(other.float(), dim=-1)
    return cut(coefficient * (main - other) + other, main, beta)


def prob_contrast(main: Tensor, other: Tensor, coefficient: float, beta: float | None = None) -> Tensor:
    """Eq. decoding as printed, `lambda p+ - (lambda - 1) p-`, returned as logarithms.

    The difference can be negative; such tokens get probability zero (`-inf`). The values sum to one
    before clipping, so at least one token always stays, and a softmax renormalises the rest.
    """
    p, p_other = torch.softmax(main.float(), dim=-1), torch.softmax(other.float(), dim=-1)
    difference = coefficient * p - (coefficient - 1.0) * p_other
    return cut(difference.clamp(min=0.0).log(), main, beta)


def logit_contrast(main: Tensor, other: Tensor, alpha: float, beta: float | None = 0.1) -> Tensor:
    """`(1 + a) z+ - a z-` with the plausibility cut (VCD, SID, ICD, ONLY)."""
    main, other = main.float(), other.float()
    return cut((1.0 + alpha) * main - alpha * other, main, beta)


def logit_sum(main: Tensor, other: Tensor, alpha: float, beta: float | None = 0.1) -> Tensor:
    """`z+ + a z'` with the plausibility cut: the second row helps (AGLA, ONLY's collaborative arm)."""
    main, other = main.float(), other.float()
    return cut(main + alpha * other, main, beta)


def check_contrast(name: str, alpha: float, plausibility: float | None) -> None:
    """Refuse contrast strengths and plausibility cuts that make no sense."""
    if alpha < 0:
        raise InvalidMethod(f"{name}: alpha={alpha} is negative.", "Use 0 (no contrast) or more.")
    if plausibility is not None and not 0 <= plausibility <= 1:
        raise InvalidMethod(
            f"{name}: plausibility={plausibility} is not a share.", "Choose it in [0, 1], or None for no cut."
        )
