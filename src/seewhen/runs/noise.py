"""Sampling that does not depend on who shares the batch.

Sampling uses the Gumbel trick: adding Gumbel noise to the log-probabilities and taking the largest is
sampling from them, exactly. The noise of a sample is its own, made from the seed and the sample's id, so
the same sample with the same seed gets the same noise in any batch, on any machine, and after any restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Literal

import torch
from torch import Tensor
from transformers import LogitsProcessor

from seewhen.equations.drawing import hashed_gumbel, keys_at

Noise = Literal["streams", "hash"]


def stream_seed(seed: int, name: str) -> int:
    """A number for one sample's random stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


class OwnNoise(LogitsProcessor):
    """Adds each row's own Gumbel noise to its scores at temperature T: the largest is then a sample.

    A row that has drawn one of the `ends` gets no more noise: what follows is padding, and noise takes
    longer than a small model.
    """

    def __init__(self, seeds: Sequence[int], temperature: float = 1.0, ends: Collection[int] = ()) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._temperature, self._ends = temperature, ends
        self._over: list[bool] | None = None  # nothing is drawn yet

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self._over is None:
            self._over = [False] * len(self._streams)
        elif self._ends:
            drawn = input_ids[:, -1].tolist()
            self._over = [over or token in self._ends for over, token in zip(self._over, drawn, strict=True)]
        # -log of an exponential variable is a Gumbel variable. Drawn on the CPU: a GPU's generator
        # gives other numbers on other cards.
        waits = torch.ones(scores.shape)
        for row, stream, over in zip(waits, self._streams, self._over, strict=True):
            if not over:
                row.exponential_(generator=stream)
        return scores.float() / self._temperature - waits.log().to(scores.device)


class HashedNoise(LogitsProcessor):
    """The same with noise that is a hash of seed, step and token, made where the scores are.

    Streams are drawn on the CPU, which for a vocabulary of fifty thousand takes longer than a small model.
    The integers are the same everywhere; their logarithms are rounded by the device.
    """

    def __init__(self, seeds: Sequence[int], temperature: float = 1.0) -> None:
        self._streams, self._temperature, self._step = torch.tensor(seeds), temperature, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self._streams = self._streams.to(scores.device)
        keys = keys_at(self._streams, torch.full_like(self._streams, self._step))
        self._step += 1
        return scores.float() / self._temperature + hashed_gumbel(keys, scores.shape[-1])
