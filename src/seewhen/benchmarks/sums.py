"""Arithmetic on sums of counts, or on arrays of sums: one per resample of a bootstrap."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Sum = float | NDArray[np.float64]
# group -> name of a count -> its sum over the rows of the group
Totals = Mapping[str, Mapping[str, Sum]]


def pool(totals: Totals) -> dict[str, Sum]:
    """The sums over all groups."""
    pooled: dict[str, Sum] = {}
    for sums in totals.values():
        for name, count in sums.items():
            pooled[name] = pooled.get(name, 0) + count
    return pooled


def divide(part: Sum, whole: Sum) -> Sum:
    """part / whole, and 0 where there is nothing to divide by."""
    part, whole = np.broadcast_arrays(np.asarray(part, float), np.asarray(whole, float))
    return np.divide(part, whole, out=np.zeros(whole.shape), where=whole != 0)


def percent(part: Sum, whole: Sum) -> Sum:
    """The share in percent, and 0 of nothing."""
    return 100.0 * divide(part, whole)


def harmonic_mean(a: Sum, b: Sum) -> Sum:
    """F1 of a precision and a recall, and 0 where both are 0."""
    return divide(2 * a * b, a + b)
