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

from seewhen.decoding.fast.lane import Likely
from seewhen.equations.drawing import drawn, keys_at

_COLDEST = 1e-4  # below this a temperature is greedy
_LONGEST_WORD = 64  # tokens
LEAST_LOG_PROB = -9999.0  # what OpenAI reports for a token that cannot be


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


class RowChooser:
    """The choices of one row, step after step."""

    def __init__(self, sampling: Sampling, stream: int, runners: int | None) -> None:
        self.sampling, self._runners = sampling, runners
        self._stream, self._number = stream, 0
        self._chances: Tensor | None = None

    @property
    def passive(self) -> bool:
        """Whether there is nothing to do: greedy, and nobody wants log-probabilities or words left out."""
        steered = self.sampling.bias or self.sampling.forbidden
        return self.sampling.greedy and self._runners is None and not steered

    def __call__(self, scores: Tensor, tokens: Sequence[int] = ()) -> Tensor:
        """Scores (vocabulary,) whose largest entry is the choice, after the newest `tokens`."""
        if self._runners is not None:
            self._chances = torch.log_softmax(scores, dim=-1).cpu()
        scores = self._steered(scores, tokens)
        if self.sampling.greedy:
            return scores
        how = (self.sampling.temperature, self.sampling.top_p, self.sampling.min_p)
        temperature, top_p, min_p = (torch.tensor([float(value)], device=scores.device) for value in how)
        stream, number = (torch.tensor([value], device=scores.device) for value in (self._stream, self._number))
        self._number += 1
        return drawn(scores[None], temperature, top_p, min_p, keys_at(stream, number))[0]

    def likely(self, token: int) -> Likely | None:
        """The log-probability of a token in the last step, and of the likeliest; None where nobody wants them."""
        if self._chances is None or self._runners is None:
            return None
        best = self._chances.topk(min(self._runners, len(self._chances)))
        return Likely(
            float(self._chances[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        )

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
