"""Random numbers that are the same in every process, on every machine and in every Python version.

A stream is named by its seed and a path such as ("scene", "train", 17). Only `random.Random.random` is used,
whose sequence Python guarantees; its other methods may change between versions.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def key(seed: int, *path: str | int) -> int:
    """A 64-bit integer for a seed and a path."""
    text = "/".join(str(part) for part in (seed, *path))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


class Stream:
    """One sequence of random choices."""

    def __init__(self, seed: int, *path: str | int) -> None:
        self._uniform = random.Random(key(seed, *path)).random  # not cryptographic, and need not be

    def chance(self, probability: float) -> bool:
        return self._uniform() < probability

    def below(self, n: int) -> int:
        """An integer in [0, n)."""
        return int(self._uniform() * n)

    def between(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[T], weights: Sequence[int]) -> T:
        """One item, in proportion to integer weights (integers: no rounding to differ on)."""
        at = self.below(sum(weights))
        for item, weight in zip(items, weights, strict=True):
            at -= weight
            if at < 0:
                return item
        raise AssertionError("weights must be positive")

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Fisher-Yates."""
        out = list(items)
        for i in range(len(out) - 1, 0, -1):
            j = self.below(i + 1)
            out[i], out[j] = out[j], out[i]
        return out
