"""Choosing tokens row by row: greedy and sampled answers of any temperature share a batch.

Sampling adds Gumbel noise to the scores and takes the largest, which is sampling from them, exactly. Each
row's noise comes from its own stream, so an answer depends on its seed and not on who shares the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from seewhen.equations.contrast import cut

_COLDEST = 1e-4  # below this a temperature is greedy
_LONGEST_WORD = 64  # tokens
_LEAST_LOG_PROB = -9999.0  # what OpenAI reports for a token that cannot be


@dataclass(frozen=True)
class Sampling:
    """How one request's tokens are chosen."""

    temperature: float
    top_p: float
    seed: int
    min_p: float = 0.0
    bias: Mapping[int, float] = field(default_factory=dict)  # added to the scores of tokens
    forbidden: tuple[tuple[int, ...], ...] = ()  # rows of tokens that are not completed

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return self.temperature < _COLDEST


@dataclass(frozen=True)
class Likeliest:
    """The log-probabilities of one step of one row: of all tokens, and the best of them."""

    all: Tensor
    ids: tuple[int, ...]

    def of(self, token: int) -> float:
        """The log-probability of a token."""
        return max(float(self.all[token]), _LEAST_LOG_PROB)


class RowChooser:
    """The choices of one row, step after step."""

    def __init__(self, sampling: Sampling, stream: int, runners: int | None) -> None:
        self.sampling, self._runners = sampling, runners
        self._stream = None if sampling.greedy else torch.Generator().manual_seed(stream)
        self.likeliest: Likeliest | None = None

    @property
    def passive(self) -> bool:
        """Whether there is nothing to do: greedy, and nobody wants log-probabilities or words left out."""
        steered = self.sampling.bias or self.sampling.forbidden
        return self._stream is None and self._runners is None and not steered

    def __call__(self, scores: Tensor, tokens: Sequence[int] = ()) -> Tensor:
        """Scores (vocabulary,) whose largest entry is the choice, after the newest `tokens`."""
        if self._runners is not None:
            chances = torch.log_softmax(scores, dim=-1).cpu()
            best = chances.topk(min(self._runners, len(chances))).indices.tolist()
            self.likeliest = Likeliest(chances, tuple(best))
        scores = self._steered(scores, tokens)
        if self._stream is None:
            return scores
        scores = scores / self.sampling.temperature
        if self.sampling.top_p < 1.0:
            scores = _nucleus(scores, self.sampling.top_p)
        if self.sampling.min_p:
            scores = cut(scores, scores, self.sampling.min_p)
        # -log of an exponential variable is a Gumbel variable. Drawn on the CPU: a GPU's generator gives other
        # numbers on other cards.
        waits = torch.empty(scores.shape[-1]).exponential_(generator=self._stream)
        return scores - waits.log().to(scores.device)

    def _steered(self, scores: Tensor, tokens: Sequence[int]) -> Tensor:
        bias, out = self.sampling.bias, sorted(completing(self.sampling.forbidden, tokens))
        if bias or out:
            scores = scores.clone()
            scores[list(bias)] += torch.tensor(list(bias.values()), device=scores.device)
            scores[out] = -torch.inf
        return scores


def completing(forbidden: Iterable[tuple[int, ...]], tokens: Sequence[int]) -> set[int]:
    """Tokens that would complete one of the forbidden rows."""
    found: set[int] = set()
    for row in forbidden:
        start = len(row) - 1
        if start == 0 or (start <= len(tokens) and tuple(tokens[-start:]) == row[:-1]):
            found.add(row[-1])
    return found


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """The smallest set of tokens with `top_p` of the probability, the likeliest at least; others are out."""
    chances, order = torch.softmax(scores, dim=-1).sort(descending=True)
    enough = chances.cumsum(dim=-1) - chances >= top_p
    enough[0] = False  # in float32 a tiny top_p is 0
    out = torch.zeros_like(scores, dtype=torch.bool).scatter(0, order, enough)
    return scores.masked_fill(out, -torch.inf)


class Choosers(LogitsProcessor):
    """All rows of a batch; None for a row that is finished or has nothing to choose."""

    def __init__(self, rows: Sequence[Any]) -> None:
        self._rows = rows  # each with `chooser` and `finished`

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        busy = [i for i, row in enumerate(self._rows) if not row.finished and not row.chooser.passive]
        if not busy:
            return scores
        scores = scores.float().clone()
        for i in busy:
            chooser = self._rows[i].chooser
            newest = input_ids[i, -_LONGEST_WORD:].tolist() if chooser.sampling.forbidden else ()
            scores[i] = chooser(scores[i], newest)
        return scores
