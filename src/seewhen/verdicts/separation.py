"""How well a value tells true from invented objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Ordered:
    """Rows from the highest value to the lowest, and where each run of equal values ends."""

    rows: NDArray[np.int64]
    ends: NDArray[np.int64]

    @staticmethod
    def of(values: Array) -> Ordered:
        rows = np.argsort(-values, kind="stable")
        return Ordered(rows, np.flatnonzero(np.append(np.diff(values[rows]) != 0, True)))

    def sums(self, weights: Array) -> Array:
        """The sum of weights down to the end of each run."""
        return np.cumsum(weights[self.rows])[self.ends]


def auroc(value: Array, true: Flags, bins: NDArray[np.int64] | None, weights: Array) -> float:
    """How often a true object is above an invented one (of the same bin); ties count half."""
    won = pairs = 0.0
    for number in (0,) if bins is None else np.unique(bins):
        rows = np.ones(len(value), bool) if bins is None else bins == number
        order = Ordered.of(value[rows])
        right, wrong = (order.sums(weights[rows] * kind[rows]) for kind in (true, ~true))
        if len(right):
            higher = np.diff(right, prepend=0.0)
            won += float(higher @ (wrong[-1] - wrong + np.diff(wrong, prepend=0.0) / 2))
            pairs += float(right[-1] * wrong[-1])
    return won / pairs if pairs else float("nan")
