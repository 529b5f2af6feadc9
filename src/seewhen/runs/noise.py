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

Noise = Literal["streams", "hash"]


_MASK = 2**64 - 1
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # those of splitmix64


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
        self._seeds, self._temperature, self._step = tuple(seeds), temperature, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        keys = [_mixed(seed + self._step * _GAMMA) for seed in self._seeds]
        self._step += 1
        uniform = hashed_uniform(torch.tensor([_signed(key) for key in keys]).to(scores.device), scores.shape[-1])
        return scores.float() / self._temperature - uniform.log().neg().log().float()


def hashed_uniform(keys: Tensor, width: int) -> Tensor:
    """Numbers between 0 and 1, exclusive: (rows, width), float64, from keys (rows,), int64."""
    counter = torch.arange(1, width + 1, device=keys.device)
    z = keys[:, None] + counter * _signed(_GAMMA)  # wraps around, as it shall
    z = (z ^ _shifted(z, 30)) * _signed(_FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(_SECOND)
    z = z ^ _shifted(z, 31)
    return (_shifted(z, 12).double() + 0.5) * 2.0**-52


def _shifted(z: Tensor, bits: int) -> Tensor:
    """Shifted right as if unsigned."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(z: int) -> int:
    z &= _MASK
    z = ((z ^ (z >> 30)) * _FIRST) & _MASK
    z = ((z ^ (z >> 27)) * _SECOND) & _MASK
    return z ^ (z >> 31)


def _signed(z: int) -> int:
    return z - 2**64 if z >= 2**63 else z
