"""Fitting a verdict to labelled mentions: penalised logistic regression, word offsets shrunk towards none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from seewhen.errors import InvalidInput
from seewhen.verdicts.separation import auroc
from seewhen.verdicts.verdict import ASKED, WRITTEN, Logistic, Signals, Verdict

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

ENOUGH = 30  # examples of a word for an offset of its own
FEWEST = 20  # examples of each kind for a fit at all
SHRINK = 4.0  # penalty of an offset: offsets are about 0 with a spread of 1/2
PENALTY = 1.0  # of the weight of a signal in units of its spread
_MOST_STEPS, _SMALLEST = 100, 1e-9


def fit_verdict(
    signals: Sequence[Signals], words: Sequence[str], there: Sequence[bool], *, offsets: bool = True
) -> Verdict:
    """The verdict that predicts `there`, from first mentions in text that the model wrote."""
    truth = np.asarray(there, bool)
    if min(truth.sum(), (~truth).sum()) < FEWEST:
        raise InvalidInput(
            f"A verdict needs {FEWEST} objects that are there and {FEWEST} that are not; "
            f"there are {truth.sum()} and {(~truth).sum()}.",
            "Give more labelled images; sampled captions have more inventions than greedy ones.",
        )
    names = [name for name in WRITTEN if all(getattr(each, name) is not None for each in signals)]
    known = words if offsets else [str(number) for number in range(len(words))]
    written, asked = (fit_logistic(_table(signals, use), use, known, truth) for use in (names, ASKED))
    odds = np.array([each.odds for each in signals])
    about = {
        "mentions": len(truth),
        "invented": int((~truth).sum()),
        "asking_auroc": round(auroc(odds, truth, None, np.ones(len(truth))), 3),
    }
    return Verdict(written, asked, about=about)


def _table(signals: Sequence[Signals], names: Sequence[str]) -> Array:
    return np.array([[getattr(each, name) for name in names] for each in signals], dtype=np.float64)


def fit_logistic(table: Array, names: Sequence[str], words: Sequence[str], there: Flags) -> Logistic:
    """Weights of the columns of `table` and offsets of the frequent `words`."""
    if not np.isfinite(table).all():
        raise InvalidInput("A signal is not a finite number.", "Look at the answers: a model gave NaN.")
    mean, spread = table.mean(axis=0), table.std(axis=0)
    spread[spread == 0] = np.inf  # a signal that never changes gets no weight
    frequent = sorted(word for word, count in Counter(words).items() if count >= ENOUGH)
    dummies = np.array([[word == other for other in frequent] for word in words], dtype=np.float64)
    dummies = dummies.reshape(len(words), len(frequent))
    penalties = np.concatenate([np.full(len(names), PENALTY), np.full(len(frequent), SHRINK)])
    found = penalised_logistic(np.hstack([(table - mean) / spread, dummies]), there, penalties)
    weights = found[1 : 1 + len(names)] / spread
    return Logistic(
        float(found[0] - weights @ mean),
        dict(zip(names, weights.tolist(), strict=True)),
        dict(zip(frequent, found[1 + len(names) :].tolist(), strict=True)),
    )


def penalised_logistic(table: Array, there: Flags, penalties: Array) -> Array:
    """Intercept, then weights: least negative log-likelihood + penalties * weights**2 / 2, by Newton's method."""
    columns = np.hstack([np.ones((len(table), 1)), table])
    sign, costs = np.where(there, 1.0, -1.0), np.concatenate([[0.0], penalties])

    def loss(weights: Array) -> float:
        return float(np.logaddexp(0, -sign * (columns @ weights)).sum() + costs @ weights**2 / 2)

    weights = np.zeros(columns.shape[1])
    for _ in range(_MOST_STEPS):
        missed = 1 / (1 + np.exp(np.clip(sign * (columns @ weights), -700, 700)))
        slope = costs * weights - columns.T @ (sign * missed)
        curvature = (columns * (missed * (1 - missed))[:, None]).T @ columns + np.diag(costs)
        step = np.linalg.lstsq(curvature, slope, rcond=None)[0]  # a column of zeros has no curvature
        size = 1.0
        while size > _SMALLEST and loss(weights - size * step) > loss(weights):
            size /= 2  # far from the end a whole step may lead uphill
        weights = weights - size * step
        if np.abs(size * step).max() < _SMALLEST:
            break
    return weights
