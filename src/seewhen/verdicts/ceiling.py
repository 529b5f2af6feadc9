"""What a model knows better than it says: the share of inventions that a method without outside help can remove.

All (image, object) pairs are scored with what the model shows of them: its odds when asked, whether it said the
object, how often it says it in other captions drawn of the same image, and for what it said the doubt while
writing (logistic, 5-fold over images). The best are taken until as many true objects are named as in the regular
captions. What is invented then, against what is invented now, is the recoverable share: a ceiling for every method
that looks at nothing else. Intervals: bootstrap over images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seewhen.errors import InvalidInput
from seewhen.verdicts.fitting import PENALTY, penalised_logistic
from seewhen.verdicts.separation import Ordered, auroc

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
Statistic = Callable[[Array], float]  # of a weight per row

FOLDS = 5
REPLICATES = 1000
LEVEL = 0.95
KEPT = (0.99, 0.97, 0.95, 0.90)  # shares of true objects at which denied inventions are counted
POSITION_BINS = 4
CALIBRATION_BINS = 8
DOUBT = ("logprob", "entropy", "position")


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval over images."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Pairs:
    """One row for each image and object that it was asked about; doubt is NaN where the object was not said."""

    image: NDArray[np.int64]
    true: Flags
    said: Flags
    odds: Array
    doubt: Mapping[str, Array]  # logprob, entropy, position where the word begins; some or none of them
    elsewhere: Array  # the share of other captions of the image that say it; all 0 where there are none

    @staticmethod
    def of(
        image: ArrayLike,
        true: ArrayLike,
        said: ArrayLike,
        odds: ArrayLike,
        elsewhere: ArrayLike | None = None,
        **doubt: ArrayLike,
    ) -> Pairs:
        """From any arrays; images may be named by numbers or words."""
        pairs = Pairs(
            np.unique(np.asarray(image), return_inverse=True)[1].astype(np.int64),
            np.asarray(true, bool),
            np.asarray(said, bool),
            np.asarray(odds, np.float64),
            {name: np.asarray(values, np.float64) for name, values in doubt.items()},
            np.zeros(np.shape(odds)) if elsewhere is None else np.asarray(elsewhere, np.float64),
        )
        pairs._check()
        return pairs

    def _check(self) -> None:
        columns = [self.true, self.said, self.odds, self.elsewhere, *self.doubt.values()]
        said = [
            self.odds,
            self.elsewhere,
            *(values[self.said] for values in self.doubt.values() if len(values) == len(self.said)),
        ]
        if any(len(column) != len(self.image) for column in columns) or not self.doubt.keys() <= set(DOUBT):
            raise InvalidInput("The columns of the pairs do not belong together.", f"Doubt is {', '.join(DOUBT)}.")
        if not all(np.isfinite(column).all() for column in said):
            raise InvalidInput(
                "A signal of an object that was said is not a finite number.", "Look at the answers."
            )
        named = self.true & self.said
        if self.image.max(initial=0) + 1 < FOLDS or not named.any() or not (self.said & ~self.true).any():
            raise InvalidInput(
                f"A ceiling needs {FOLDS} images, and objects named rightly and wrongly.", "Give more images."
            )

    def only(self, rows: Flags) -> Pairs:
        """Some of the rows."""
        doubt = {name: values[rows] for name, values in self.doubt.items()}
        kept = (self.image[rows], self.true[rows], self.said[rows], self.odds[rows])
        return Pairs(*kept, doubt, self.elsewhere[rows])


@dataclass(frozen=True)
class Separation:
    """How well a signal tells true from invented objects that were said."""

    auroc: Estimate
    within_position: Estimate | None  # comparing only mentions from the same part of the text


@dataclass(frozen=True)
class Bin:
    """Objects that were given about the same probability, and how many of them are there."""

    predicted: float
    there: Estimate
    count: int


@dataclass(frozen=True)
class Ceiling:
    """What a model knows better than it says, in shares of 1."""

    images: int
    said: int
    invented_now: Estimate
    invented_at_same_recall: Estimate
    recoverable: Estimate
    denied: Mapping[float, Estimate]  # share of true objects kept -> share of inventions denied
    signals: Mapping[str, Separation]
    calibration: tuple[Bin, ...]


def ceiling(pairs: Pairs, *, seed: int = 0, replicates: int = REPLICATES) -> Ceiling:
    """The recoverable share, and how well each signal tells inventions from true objects."""
    draws = Draws(pairs.image, seed, replicates)
    score = out_of_fold(columns(pairs), pairs, seed)
    said = pairs.only(pairs.said)
    among_said = Draws(said.image, seed, replicates, images=draws.images)
    verdict = out_of_fold(columns(said), said, seed)

    def now(weights: Array) -> float:
        return invented_share(weights[pairs.said], said.true)

    def then(weights: Array) -> float:
        return invented_at_recall(order, weights, pairs.true, pairs.said)

    order = Ordered.of(score)
    return Ceiling(
        images=draws.images,
        said=int(pairs.said.sum()),
        invented_now=draws.estimate(now),
        invented_at_same_recall=draws.estimate(then),
        recoverable=draws.estimate(lambda weights: now(weights) - then(weights)),
        denied={keep: among_said.estimate(partial(denied_share, verdict, said.true, keep)) for keep in KEPT},
        signals=separations(said, verdict, among_said),
        calibration=calibration(verdict, said.true, among_said),
    )


def columns(pairs: Pairs) -> Array:
    """What is known of each pair: odds, said or not, here and elsewhere, and the doubt of what was said."""
    doubt = [np.where(pairs.said, values, 0.0) for values in pairs.doubt.values()]
    return np.stack([pairs.odds, pairs.said.astype(np.float64), pairs.elsewhere, *doubt], axis=1)


def out_of_fold(table: Array, pairs: Pairs, seed: int) -> Array:
    """Log-odds of being there for each row, from a fit on the images of the other folds."""
    mean, spread = table.mean(axis=0), table.std(axis=0)
    table = (table - mean) / np.where(spread > 0, spread, 1.0)
    images = pairs.image.max() + 1
    fold = np.random.default_rng(seed).permutation(images)[pairs.image] % FOLDS
    score = np.zeros(len(table))
    for number in range(FOLDS):
        fitted, scored = fold != number, fold == number
        found = penalised_logistic(table[fitted], pairs.true[fitted], np.full(table.shape[1], PENALTY))
        score[scored] = found[0] + table[scored] @ found[1:]
    return score


@dataclass(frozen=True)
class Draws:
    """Resamples of images; the same seed draws the same images for any rows of them."""

    image: NDArray[np.int64]
    seed: int
    replicates: int
    images: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "images", self.images or int(self.image.max()) + 1)

    def estimate(self, statistic: Statistic) -> Estimate:
        """A statistic of weighted rows, with its interval."""
        rng = np.random.default_rng(self.seed)
        drawn = np.empty(self.replicates)
        for number in range(self.replicates):
            counts = np.bincount(rng.integers(0, self.images, self.images), minlength=self.images)
            drawn[number] = statistic(counts[self.image].astype(np.float64))
        known = drawn[np.isfinite(drawn)]
        tail = (1 - LEVEL) / 2
        low, high = np.quantile(known, [tail, 1 - tail]) if len(known) else (np.nan, np.nan)
        return Estimate(float(statistic(np.ones(len(self.image)))), float(low), float(high))


def invented_share(weights: Array, true: Flags) -> float:
    total = weights.sum()
    return float(weights[~true].sum() / total) if total else float("nan")


def invented_at_recall(order: Ordered, weights: Array, true: Flags, said: Flags) -> float:
    """The invented share among the best rows, as many as name the true objects that were said; ties are shared."""
    target = weights[true & said].sum()
    right, wrong = order.sums(weights * true), order.sums(weights * ~true)
    if target <= 0:
        return float("nan")
    reached = int(np.searchsorted(right, target - 1e-9))
    before = (right[reached - 1], wrong[reached - 1]) if reached else (0.0, 0.0)
    part = (target - before[0]) / (right[reached] - before[0])
    invented = before[1] + part * (wrong[reached] - before[1])
    return float(invented / (invented + target))


def denied_share(score: Array, true: Flags, keep: float, weights: Array) -> float:
    """The share of inventions below the highest threshold that keeps this share of true objects."""
    order = Ordered.of(score)
    right, wrong = order.sums(weights * true), order.sums(weights * ~true)
    if not right[-1] or not wrong[-1]:
        return float("nan")
    reached = int(np.searchsorted(right, keep * right[-1] - 1e-9))
    return float(1 - wrong[reached] / wrong[-1])


def separations(said: Pairs, verdict: Array, draws: Draws) -> dict[str, Separation]:
    """AUROC of each signal over what was said; entropy and position count downwards."""
    values = {"odds": said.odds, **said.doubt, "together": verdict}
    if said.elsewhere.any():
        values["elsewhere"] = said.elsewhere
    values |= {name: -values[name] for name in ("entropy", "position") if name in values}
    bins = _position_bins(said)
    found = {}
    for name, value in values.items():
        whole = draws.estimate(partial(auroc, value, said.true, None))
        within = None if bins is None else draws.estimate(partial(auroc, value, said.true, bins))
        found[name] = Separation(whole, within)
    return found


def _position_bins(said: Pairs) -> NDArray[np.int64] | None:
    if "position" not in said.doubt:
        return None
    position = said.doubt["position"]
    edges = np.quantile(position, np.linspace(0, 1, POSITION_BINS + 1)[1:-1])
    return np.searchsorted(edges, position, side="right")


def calibration(verdict: Array, true: Flags, draws: Draws) -> tuple[Bin, ...]:
    """Objects in groups of equal size by probability: what was predicted, and what is so."""
    probability = 1 / (1 + np.exp(-np.clip(verdict, -700, 700)))
    found = []
    for rows in np.array_split(np.argsort(probability, kind="stable"), CALIBRATION_BINS):
        if len(rows):
            there = draws.estimate(partial(_share_there, rows, true))
            found.append(Bin(float(probability[rows].mean()), there, len(rows)))
    return tuple(found)


def _share_there(rows: NDArray[np.int64], true: Flags, weights: Array) -> float:
    return 1 - invented_share(weights[rows], true[rows])
