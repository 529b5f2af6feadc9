"""Intervals and tests for benchmark scores: pure functions on counts.

Several questions share an image and several seeds answer the same question, so answers are not
independent; the image is the unit that is. Everything here therefore works on *additive counts per
image* (`Tally`) and on a metric that turns summed counts into a number: accuracy is correct / asked,
CHAIR_i is hallucinated / mentioned, F1 is 2 tp / (2 tp + fp + fn). Resampling an image means adding its
counts twice, so two thousand replicates are one matrix product.

Seeds: the estimate is the mean over seeds of the metric of each seed, as papers print it. Because every
sample draws from its own random stream, seeds carry no effect of their own beyond noise inside an image,
and resampling whole images (all seeds of it together) already contains that noise; `seeds="crossed"`
also resamples the seeds, for runs whose seeds do have an effect across images. It is conservative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from seewhen.errors import InvalidInput

Array = NDArray[np.float64]
# Summed counts by name, each an array of one shape -> the metric, an array of that shape.
Metric = Callable[[Mapping[str, Array]], Array]

NORMAL = NormalDist()
_BLOCK = 4_000_000  # resampling weights held at once (32 MB)


@dataclass(frozen=True)
class Tally:
    """Counts that add up: `counts[name][image, seed]`."""

    images: tuple[str, ...]
    counts: Mapping[str, Array]

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


@dataclass(frozen=True)
class McNemar:
    """Paired yes/no outcomes: `wins` right only in a, `losses` right only in b, and the p-values."""

    wins: int
    losses: int
    exact: float
    mid_p: float


@dataclass(frozen=True)
class ClusteredMcNemar:
    """McNemar's question when pairs come in groups: z of the summed net wins per image."""

    net: float
    z: float
    p: float


def _per_seed(counts: Array, names: Sequence[str], metric: Metric) -> Array:
    """Metric of totals laid out (..., seed, name), averaged over seeds."""
    values = metric({name: counts[..., k] for k, name in enumerate(names)})
    return np.asarray(values, dtype=np.float64).mean(axis=-1)


def _stack(tally: Tally) -> tuple[tuple[str, ...], Array]:
    names = tuple(tally.counts)
    return names, np.stack([np.asarray(tally.counts[n], dtype=np.float64) for n in names], axis=-1)


def estimate(tally: Tally, metric: Metric) -> float:
    """The metric of each seed's totals, averaged over seeds."""
    names, counts = _stack(tally)
    return float(_per_seed(counts.sum(axis=0), names, metric))


def _weights(images: int, replicates: int, rng: np.random.Generator) -> Iterator[Array]:
    """Blocks of (replicates, images): how often each image is drawn."""
    block = max(1, _BLOCK // max(images, 1))
    for start in range(0, replicates, block):
        rows = min(block, replicates - start)
        yield rng.multinomial(images, np.full(images, 1.0 / images), size=rows).astype(np.float64)


def _replicates(
    counts: Array, names: Sequence[str], metric: Metric, replicates: int, seeds: str, seed: int
) -> Array:
    """Bootstrap replicates of the metric for each leading arm: counts (arms, images, seeds, names)."""
    arms, images, n_seeds, n_names = counts.shape
    rng = np.random.default_rng(seed)
    flat = counts.transpose(1, 0, 2, 3).reshape(images, -1)
    out = []
    for weights in _weights(images, replicates, rng):
        totals = (weights @ flat).reshape(len(weights), arms, n_seeds, n_names)
        if seeds == "crossed" and n_seeds > 1:
            drawn = rng.integers(n_seeds, size=(len(weights), n_seeds))
            totals = np.take_along_axis(totals, drawn[:, None, :, None], axis=2)
        out.append(_per_seed(totals, names, metric))
    return np.concatenate(out)


def _bounds(value: float, replicates: Array, leave_one_out: Array, level: float) -> tuple[float, float]:
    """Bias-corrected, accelerated percentiles; plain percentiles where those are undefined."""
    replicates = replicates[np.isfinite(replicates)]
    if not len(replicates):
        return math.nan, math.nan
    tails = [(1 - level) / 2, (1 + level) / 2]
    # Ties count half: scores are fractions with small denominators and tie often.
    below = (np.mean(replicates < value) + np.mean(replicates <= value)) / 2
    jack = leave_one_out.mean() - leave_one_out
    spread = float((jack**2).sum())
    if 0 < below < 1 and math.isfinite(spread) and spread > 0:
        bias = NORMAL.inv_cdf(float(below))
        accel = float((jack**3).sum()) / (6 * spread**1.5)
        z = [bias + NORMAL.inv_cdf(tail) for tail in tails]
        if all(1 - accel * x > 0 for x in z):
            tails = [NORMAL.cdf(bias + x / (1 - accel * x)) for x in z]
    low, high = np.quantile(replicates, tails)
    return float(low), float(high)


def interval(
    tally: Tally,
    metric: Metric,
    *,
    level: float = 0.95,
    replicates: int = 2000,
    seeds: Literal["within", "crossed"] = "within",
    seed: int = 0,
) -> Interval:
    """Image-clustered bootstrap interval (BCa) of a metric."""
    names, counts = _stack(tally)
    totals = counts.sum(axis=0)
    value = float(_per_seed(totals, names, metric))
    single = np.asarray(metric({name: totals[..., k] for k, name in enumerate(names)}), dtype=np.float64)
    drawn = _replicates(counts[None], names, metric, replicates, seeds, seed)[:, 0]
    left_out = _per_seed(totals[None] - counts, names, metric)
    low, high = _bounds(value, drawn, left_out, level)
    return Interval(
        value=value,
        low=low,
        high=high,
        level=level,
        images=len(tally.images),
        seeds=tally.seeds,
        seed_sd=float(single.std(ddof=1)) if tally.seeds > 1 else math.nan,
        flat=bool(np.ptp(drawn) == 0) if np.isfinite(drawn).all() else False,
    )


def pair(a: Tally, b: Tally) -> tuple[Tally, Tally]:
    """Both tallies on the images they share, with the same number of seeds.

    One seed against several (greedy against sampled) repeats the one; otherwise the common seeds count.
    """
    common = [image for image in a.images if image in set(b.images)]
    if not common:
        raise InvalidInput("The two runs have no image in common, so they cannot be paired.")
    a, b = a.only(common), b.only(common)
    seeds = min(a.seeds, b.seeds) if min(a.seeds, b.seeds) > 1 else max(a.seeds, b.seeds)

    def fit(t: Tally) -> Tally:
        cut = {
            name: np.repeat(array, seeds, axis=1) if t.seeds == 1 else array[:, :seeds]
            for name, array in t.counts.items()
        }
        return Tally(t.images, cut)

    return fit(a), fit(b)


def difference(
    a: Tally,
    b: Tally,
    metric: Metric,
    *,
    level: float = 0.95,
    replicates: int = 2000,
    permutations: int = 9999,
    seeds: Literal["within", "crossed"] = "within",
    seed: int = 0,
) -> Difference:
    """Paired difference: both methods see the same resampled images.

    The p-value swaps the two methods on random images and asks how often the difference is as large as
    the one seen; for yes/no outcomes with one question per image this is McNemar's test.
    """
    a, b = pair(a, b)
    names, first = _stack(a)
    _, second = _stack(Tally(b.images, {name: b.counts[name] for name in names}))
    both = np.stack([first, second])
    totals = both.sum(axis=1)
    at = _per_seed(totals, names, metric)
    value = float(at[0] - at[1])
    drawn = _replicates(both, names, metric, replicates, seeds, seed)
    left_out = _per_seed(totals[:, None] - both, names, metric)
    low, high = _bounds(value, drawn[:, 0] - drawn[:, 1], left_out[0] - left_out[1], level)
    p = _swap_test(first, second, names, metric, value, permutations, seed + 1)
    return Difference(value, low, high, level, p, len(a.images))


def _swap_test(
    first: Array, second: Array, names: Sequence[str], metric: Metric, value: float, times: int, seed: int
) -> float:
    """Two-sided p-value of `value` when the methods are swapped on random images."""
    images, n_seeds, n_names = first.shape
    change = (second - first).reshape(images, -1)
    moved = np.flatnonzero(np.any(change != 0, axis=1))  # swapping equal counts changes nothing
    if not len(moved) or not math.isfinite(value):
        return 1.0
    change, base_a, base_b = change[moved], first.sum(axis=0), second.sum(axis=0)
    rng = np.random.default_rng(seed)
    tolerance = 1e-9 * max(1.0, abs(value))
    extreme, done = 0, 0
    block = max(1, _BLOCK // len(moved))
    while done < times:
        rows = min(block, times - done)
        swap = rng.integers(2, size=(rows, len(moved))).astype(np.float64)
        shift = (swap @ change).reshape(rows, n_seeds, n_names)
        gap = _per_seed(base_a + shift, names, metric) - _per_seed(base_b - shift, names, metric)
        extreme += int(np.sum(np.abs(gap) >= abs(value) - tolerance))
        done += rows
    return (extreme + 1) / (times + 1)


def mcnemar(wins: int, losses: int) -> McNemar:
    """Exact and mid-p McNemar test on discordant pairs.

    Both assume independent pairs. Questions on one image are not: use `mcnemar_clustered` or
    `difference` when images have more than one question.
    """
    if wins < 0 or losses < 0:
        raise InvalidInput(f"Counts of pairs cannot be negative, got {wins} and {losses}.")
    n, k = wins + losses, min(wins, losses)
    if n == 0:
        return McNemar(0, 0, 1.0, 1.0)
    # Whole numbers until the end: exact for any size, where a float sum of binomials would underflow.
    term, tail = 1, 1
    for i in range(k):
        term = term * (n - i) // (i + 1)
        tail += term
    exact = min(1.0, 2 * tail / (1 << n))
    mid = min(1.0, (2 * tail - term) / (1 << n))
    return McNemar(wins, losses, exact, mid)


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
