"""Estimates with intervals where answers come in scenes: the scene is what is drawn again.

Words of one caption are not independent, so every bootstrap here draws whole scenes. Drawing a scene twice
is counting its words twice, which makes medians and AUROC of thousands of resamples array operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seewhen.runs.stats import Tally, intervals
from seewhen.showing.figures.cases import Case

Array = NDArray[np.float64]
REPLICATES = 1000
LEVEL = 0.95


def over_scenes(figure: str, cases: Sequence[Case]) -> dict[str, Any]:
    """What every figure of many answers says about them."""
    method, interval = cases[0].trace.method, "95 %, bootstrap over scenes"
    return {"figure": figure, "method": method, "answers": len(cases), "interval": interval}


def drawn_scenes(scenes: int, replicates: int = REPLICATES) -> Array:
    """How often each scene is in each resample: (replicates, scenes)."""
    counts = np.random.default_rng(0).multinomial(scenes, np.full(scenes, 1 / scenes), size=replicates)
    return counts.astype(np.float64)


def estimate(value: float, replicates: Array) -> dict[str, float]:
    """A value with the percentile interval of its resamples."""
    known = replicates[np.isfinite(replicates)]
    if not len(known) or not np.isfinite(value):
        return {"value": float(value), "low": float("nan"), "high": float("nan")}
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": float(value), "low": float(low), "high": float(high)}


def median(
    values: Sequence[float], scene: Sequence[int], scenes: int, replicates: int = REPLICATES
) -> dict[str, float]:
    """The median of `values`, the i-th of which is of scene `scene[i]`."""
    if not len(values):
        return {"value": float("nan"), "low": float("nan"), "high": float("nan")}
    order = np.argsort(values, kind="stable")
    ranked = np.asarray(values, dtype=np.float64)[order]
    weights = drawn_scenes(scenes, replicates)[:, np.asarray(scene)[order]]
    cumulative = weights.cumsum(axis=1)
    half = cumulative[:, -1:] / 2
    # The two middle values; they are one for an odd number of words.
    lower, upper = (cumulative >= half).argmax(axis=1), (cumulative > half).argmax(axis=1)
    middle = (ranked[lower] + ranked[upper]) / 2
    middle[cumulative[:, -1] == 0] = np.nan
    return estimate(float(np.median(ranked)), middle)


def _above(positive: Array, negative: Array) -> Array:
    p, n = positive[:, None], negative[None]
    return (p > n) + 0.5 * (p == n)


def auroc_estimate(
    values: Sequence[float],
    positive: Sequence[bool],
    scene: Sequence[int],
    scenes: int,
    replicates: int = REPLICATES,
) -> dict[str, float]:
    """AUROC of `values` for `positive`, with an interval over scenes."""
    v, is_positive, of = np.asarray(values, dtype=np.float64), np.asarray(positive, bool), np.asarray(scene)
    if not is_positive.any() or is_positive.all():
        return {"value": float("nan"), "low": float("nan"), "high": float("nan")}
    p, n = np.flatnonzero(is_positive), np.flatnonzero(~is_positive)
    # won[a, b]: pairs of a positive of scene a and a negative of scene b that are in order.
    won = np.zeros((scenes, scenes))
    np.add.at(won, (of[p][:, None], of[n][None]), _above(v[p], v[n]))
    positives, negatives = (np.bincount(of[index], minlength=scenes).astype(float) for index in (p, n))
    weights = drawn_scenes(scenes, replicates)
    with np.errstate(invalid="ignore"):
        drawn = np.einsum("ra,ab,rb->r", weights, won, weights, optimize=True)
        drawn = drawn / ((weights @ positives) * (weights @ negatives))
    return estimate(won.sum() / (positives.sum() * negatives.sum()), drawn)


def shares(counts: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> dict[str, dict[str, Any]]:
    """Ratios of sums with intervals (BCa): name -> (numerators, denominators), one of each per scene."""
    size = len(next(iter(counts.values()))[0])
    tally = Tally(
        tuple(str(number) for number in range(size)),
        {
            (name, part): np.asarray(values, dtype=np.float64)[:, None]
            for name, parts in counts.items()
            for part, values in zip(("over", "under"), parts, strict=True)
        },
    )

    def ratios(totals: Mapping[Any, Array]) -> Mapping[str, Array]:
        # A resample without a single case says nothing; its ratio counts as 0, as does an empty figure.
        return {name: totals[name, "over"] / np.maximum(totals[name, "under"], 1e-12) for name in counts}

    found = intervals(tally, ratios, level=LEVEL, replicates=REPLICATES)
    return {name: {"value": each.value, "low": each.low, "high": each.high} for name, each in found.items()}
