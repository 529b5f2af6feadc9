"""Intervals and tests for benchmark scores: pure functions on counts.

Several questions share an image and several seeds answer the same question, so answers are not
independent; the image is the unit that is. Everything here therefore works on *additive counts per
image* (`Tally`) and on a function from summed counts to metrics: accuracy is right / asked, CHAIR_i is
hallucinated / mentioned, F1 is 2 tp / (2 tp + fp + fn). Drawing an image twice means adding its counts
twice, so two thousand resamples are one matrix product.

Seeds: the estimate is the mean over seeds of the metric of each seed, as papers print it. Because every
sample draws from its own random stream, seeds carry no effect of their own beyond noise inside an image,
and resampling whole images (all seeds of it together) already contains that noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seewhen.errors import InvalidInput

Array = NDArray[np.float64]
Key = Hashable
# Summed counts by name, each an array of one shape -> metrics by name, arrays of that shape.
Metrics = Callable[[Mapping[Any, Array]], Mapping[str, Array]]

NORMAL = NormalDist()
_NOTHING = 1e-9  # sums in another order differ in the last of sixteen digits
_BLOCK = 4_000_000  # resampling weights held at once (32 MB)


@dataclass(frozen=True)
class Tally:
    """Counts that add up: `counts[name][image, seed]`."""

    images: tuple[str, ...]
    counts: Mapping[Key, Array]

    def __post_init__(self) -> None:
        shapes = {np.shape(array) for array in self.counts.values()}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2 or next(iter(shapes))[0] != len(self.images):
            raise InvalidInput(f"counts must all have the shape (images, seeds), got {sorted(shapes)}.")

    @property
    def seeds(self) -> int:
        return int(next(iter(self.counts.values())).shape[1])

    def only(self, images: Sequence[str]) -> Tally:
        """The same counts for some of the images, in the order given."""
        row = {image: i for i, image in enumerate(self.images)}
        index = [row[image] for image in images]
        return Tally(tuple(images), {name: array[index] for name, array in self.counts.items()})


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval.

    `flat` says that no resample changed the value (every image scored alike): the interval then has no
    width because the data cannot tell its width, not because the value is exact.
    """

    value: float
    low: float
    high: float
    level: float
    images: int
    seeds: int
    seed_sd: float  # spread of the metric between single seeds; nan with one seed
    flat: bool


@dataclass(frozen=True)
class Difference:
    """`a` minus `b` on the same images: estimate, bootstrap interval, two-sided permutation p-value."""

    value: float
    low: float
    high: float
    level: float
    p: float
    images: int
    changed: int  # images that do not count the same for both


@dataclass(frozen=True)
class ClusteredMcNemar:
    """McNemar's question when pairs come in groups: z of the summed net wins per image."""

    net: float
    z: float
    p: float


def _stack(tally: Tally) -> tuple[tuple[Key, ...], Array]:
    """Names of the counts and the counts as one array (image, seed, name)."""
    names = tuple(tally.counts)
    return names, np.stack([np.asarray(tally.counts[n], dtype=np.float64) for n in names], axis=-1)


def _evaluate(totals: Array, names: Sequence[Key], metrics: Metrics) -> tuple[tuple[str, ...], Array]:
    """Metrics of totals laid out (..., seed, name): their names and values (..., seed, metric)."""
    values = metrics({name: totals[..., k] for k, name in enumerate(names)})
    arrays = [np.broadcast_to(np.asarray(v, dtype=np.float64), totals.shape[:-1]) for v in values.values()]
    return tuple(values), np.stack(arrays, axis=-1)


def estimate(tally: Tally, metrics: Metrics) -> dict[str, float]:
    """Metrics of each seed's totals, averaged over seeds."""
    names, counts = _stack(tally)
    titles, values = _evaluate(counts.sum(axis=0), names, metrics)
    return dict(zip(titles, values.mean(axis=0).tolist(), strict=True))


def _resample(counts: Array, names: Sequence[Key], metrics: Metrics, replicates: int, seed: int) -> Array:
    """Bootstrap replicates (replicate, arm, metric) of counts (arm, image, seed, name)."""
    arms, images, n_seeds, n_names = counts.shape
    rng = np.random.default_rng(seed)
    flat = counts.transpose(1, 0, 2, 3).reshape(images, -1)
    chances = np.full(images, 1.0 / images)
    out = []
    for rows in _blocks(replicates, images + flat.shape[1]):
        drawn = rng.multinomial(images, chances, size=rows).astype(np.float64)  # how often each image
        totals = (drawn @ flat).reshape(rows, arms, n_seeds, n_names)
        out.append(_evaluate(totals, names, metrics)[1].mean(axis=-2))
    return np.concatenate(out)


def _blocks(total: int, width: int) -> Iterator[int]:
    """`total` rows of `width` numbers, cut so that a block fits comfortably in memory."""
    block = max(1, _BLOCK // max(width, 1))
    for start in range(0, total, block):
        yield min(block, total - start)


def _bounds(value: float, replicates: Array, leave_one_out: Array, level: float) -> tuple[float, float]:
    """Bias-corrected, accelerated percentiles; plain percentiles where those are undefined."""
    tails = [(1 - level) / 2, (1 + level) / 2]
    # Ties count half: scores are fractions with small denominators and tie often.
    below = (np.mean(replicates < value) + np.mean(replicates <= value)) / 2
    jack = leave_one_out.mean() - leave_one_out
    spread = float((jack**2).sum())
    if 0 < below < 1 and spread > 0:
        bias = NORMAL.inv_cdf(float(below))
        accel = float((jack**3).sum()) / (6 * spread**1.5)
        z = [bias + NORMAL.inv_cdf(tail) for tail in tails]
        if all(1 - accel * x > 0 for x in z):
            tails = [NORMAL.cdf(bias + x / (1 - accel * x)) for x in z]
    low, high = np.quantile(replicates, tails)
    return float(low), float(high)


def intervals(
    tally: Tally,
    metrics: Metrics,
    *,
    level: float = 0.95,
    replicates: int = 2000,
    seed: int = 0,
) -> dict[str, Interval]:
    """Image-clustered bootstrap intervals (BCa) of all metrics."""
    names, counts = _stack(tally)
    totals = counts.sum(axis=0)
    titles, single = _evaluate(totals, names, metrics)
    drawn = _resample(counts[None], names, metrics, replicates, seed)[:, 0]
    left_out = _evaluate(totals - counts, names, metrics)[1].mean(axis=-2)
    found = {}
    for k, title in enumerate(titles):
        value = float(single[:, k].mean())
        low, high = _bounds(value, drawn[:, k], left_out[:, k], level)
        found[title] = Interval(
            value=value,
            low=low,
            high=high,
            level=level,
            images=len(tally.images),
            seeds=tally.seeds,
            seed_sd=float(single[:, k].std(ddof=1)) if tally.seeds > 1 else math.nan,
            flat=bool(np.ptp(drawn[:, k]) == 0),
        )
    return found


def pair(a: Tally, b: Tally) -> tuple[Tally, Tally]:
    """Both tallies on the images and counts they share, with the same number of seeds.

    One seed against several (greedy against sampled) repeats the one; otherwise the common seeds count.
    """
    shared = set(b.images)
    common = [image for image in a.images if image in shared]
    if not common:
        raise InvalidInput("The two runs have no image in common, so they cannot be paired.")
    a, b = a.only(common), b.only(common)
    seeds = min(a.seeds, b.seeds) if min(a.seeds, b.seeds) > 1 else max(a.seeds, b.seeds)

    names = [name for name in a.counts if name in b.counts]  # a later version may count more

    def fit(t: Tally) -> Tally:
        arrays = {name: t.counts[name] for name in names}
        return Tally(
            t.images, {n: np.repeat(x, seeds, axis=1) if t.seeds == 1 else x[:, :seeds] for n, x in arrays.items()}
        )

    return fit(a), fit(b)


def differences(
    a: Tally,
    b: Tally,
    metrics: Metrics,
    *,
    level: float = 0.95,
    replicates: int = 2000,
    permutations: int = 9999,
    seed: int = 0,
) -> dict[str, Difference]:
    """Paired differences of all metrics: both methods see the same resampled images.

    The p-value swaps the two methods on random images and asks how often the difference is as large as
    the one seen; for yes/no outcomes with one question per image this is McNemar's test.
    """
    names, both = _paired(a, b)
    first, second = both
    totals = both.sum(axis=1)
    titles, at = _evaluate(totals, names, metrics)
    values = (at[0] - at[1]).mean(axis=0)
    drawn = _resample(both, names, metrics, replicates, seed)
    left_out = _evaluate(totals[:, None] - both, names, metrics)[1].mean(axis=-2)
    p_values = _swap_test(first, second, names, metrics, values, permutations, seed + 1)
    changed = int(np.any(first != second, axis=(1, 2)).sum())
    found = {}
    for k, title in enumerate(titles):
        gap = drawn[:, 0, k] - drawn[:, 1, k]
        value, gap = (np.where(np.abs(each) < _NOTHING, 0.0, each) for each in (values[k], gap))
        low, high = _bounds(float(value), gap, left_out[0, :, k] - left_out[1, :, k], level)
        found[title] = Difference(float(value), low, high, level, float(p_values[k]), both.shape[1], changed)
    return found


def swap_test(a: Tally, b: Tally, metrics: Metrics, permutations: int) -> dict[str, float]:
    """The p-values of `differences` alone, from as many swaps as wanted."""
    names, both = _paired(a, b)
    titles, at = _evaluate(both.sum(axis=1), names, metrics)
    values = (at[0] - at[1]).mean(axis=0)
    found = _swap_test(both[0], both[1], names, metrics, values, permutations, 1)
    return dict(zip(titles, found.tolist(), strict=True))


def _paired(a: Tally, b: Tally) -> tuple[tuple[Key, ...], Array]:
    """Names of the counts and both tallies on what they share, as one array (arm, image, seed, name)."""
    a, b = pair(a, b)
    names, first = _stack(a)
    return names, np.stack([first, _stack(b)[1]])


def _swap_test(
    first: Array, second: Array, names: Sequence[Key], metrics: Metrics, values: Array, times: int, seed: int
) -> Array:
    """Two-sided p-values of the differences `values` when methods are swapped on random images."""
    images, n_seeds, n_names = first.shape
    change = (second - first).reshape(images, -1)
    change = change[np.any(change != 0, axis=1)]  # swapping equal counts changes nothing
    if not len(change):
        return np.ones_like(values)
    in_a, in_b = first.sum(axis=0), second.sum(axis=0)
    rng = np.random.default_rng(seed)
    threshold = np.abs(values) - 1e-9 * np.maximum(1.0, np.abs(values))  # rounding must not break ties
    extreme = np.zeros_like(values)
    for rows in _blocks(times, len(change) + change.shape[1]):
        swap = rng.integers(2, size=(rows, len(change))).astype(np.float64)
        shift = (swap @ change).reshape(rows, n_seeds, n_names)
        gap = _evaluate(in_a + shift, names, metrics)[1] - _evaluate(in_b - shift, names, metrics)[1]
        extreme += np.sum(np.abs(gap.mean(axis=-2)) >= threshold, axis=0)
    return np.asarray((extreme + 1) / (times + 1))


def mcnemar_clustered(net_wins: Sequence[float] | Array) -> ClusteredMcNemar:
    """McNemar's test for grouped pairs: `net_wins[i]` is wins minus losses on image i.

    z = sum(d) / sqrt(sum(d^2)); with one pair per image this is McNemar's statistic without the
    continuity correction (the variance is Obuchowski's, 1998, for a mean difference of zero).
    """
    d = np.asarray(net_wins, dtype=np.float64)
    scale = math.sqrt(float((d**2).sum()))
    net = float(d.sum())
    if scale == 0:
        return ClusteredMcNemar(0.0, 0.0, 1.0)
    z = net / scale
    return ClusteredMcNemar(net, z, math.erfc(abs(z) / math.sqrt(2)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted
