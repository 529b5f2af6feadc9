"""Can a method's effect be told from the model alone? Rank correlations, and each rung predicted from the others.

What predicts, and how, was fixed before any rung was trained: `seewhen.runs.ladder`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seewhen.runs.ladder import LEAST, Fit, comparable
from seewhen.runs.stats import holm

Array = NDArray[np.float64]
PERMUTATIONS = 4000


@dataclass(frozen=True)
class Correlation:
    """Spearman's, with the chance of one as large by accident, corrected for the number of diagnostics (Holm)."""

    diagnostic: str
    rho: float
    p: float


@dataclass(frozen=True)
class Prediction:
    """Each rung predicted from all others: the mean error, that of their mean, and the values."""

    error: float
    error_of_mean: float
    predicted: Mapping[str, float]
    actual: Mapping[str, float]


def ranks(values: Array) -> Array:
    """1 for the smallest; ties share their mean rank."""
    order = np.argsort(values, kind="stable")
    out = np.empty(len(values))
    out[order] = np.arange(1, len(values) + 1)
    for value in np.unique(values):
        same = values == value
        out[same] = out[same].mean()
    return out


def spearman(a: Array, b: Array) -> float:
    x, y = (each - each.mean() for each in (ranks(a), ranks(b)))
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale else 0.0


def correlations(
    effects: Mapping[str, float], diagnostics: Mapping[str, Mapping[str, float]]
) -> list[Correlation]:
    """Of an effect with every diagnostic that all rungs have, the strongest first."""
    rungs = [name for name in effects if name in diagnostics]
    looked = [name for name in rungs if "divergence" in diagnostics[name]]
    rungs = looked if len(looked) >= LEAST else rungs  # the others' answers tell less
    if len(rungs) < LEAST:
        return []
    shared = [key for key in diagnostics[rungs[0]] if all(key in diagnostics[name] for name in rungs)]
    y = np.array([effects[name] for name in rungs])
    rng = np.random.default_rng(0)
    shuffled = np.stack([rng.permutation(len(y)) for _ in range(PERMUTATIONS)])
    found, chances = [], []
    for key in shared:
        x = np.array([diagnostics[name][key] for name in rungs])
        rho = spearman(x, y)
        rx, ry = ranks(x), ranks(y)
        rx, ry = rx - rx.mean(), ry - ry.mean()
        scale = np.sqrt((rx @ rx) * (ry @ ry))
        by_chance = np.abs(ry[shuffled] @ rx / scale) if scale else np.ones(PERMUTATIONS)
        found.append((key, rho))
        chances.append(float((1 + (by_chance >= abs(rho) - 1e-12).sum()) / (1 + PERMUTATIONS)))
    corrected = holm(chances) if chances else []
    out = [Correlation(key, rho, p) for (key, rho), p in zip(found, corrected, strict=True)]
    return sorted(out, key=lambda each: -abs(each.rho))


def leave_one_out(
    effects: Mapping[str, float], diagnostics: Mapping[str, Mapping[str, float]], way: str
) -> Prediction | None:
    """Each rung from the others, by what is known of all of them; None with too few."""
    names, rungs = comparable({rung: diagnostics[rung] for rung in effects if rung in diagnostics}, way)
    if len(rungs) < LEAST or not names:
        return None
    x = np.array([[diagnostics[rung][name] for name in names] for rung in rungs])
    y = np.array([effects[rung] for rung in rungs])
    told, means = np.empty(len(y)), np.empty(len(y))
    for number in range(len(y)):
        others = np.arange(len(y)) != number
        told[number], _ = Fit.of(x[others], y[others]).at(x[number])
        means[number] = y[others].mean()
    return Prediction(
        float(np.abs(told - y).mean()),
        float(np.abs(means - y).mean()),
        dict(zip(rungs, told.tolist(), strict=True)),
        dict(zip(rungs, y.tolist(), strict=True)),
    )


def effects_of(
    entries: Sequence[Mapping[str, Any]], method: str, way: str, metric: str = "chair_i"
) -> dict[str, float]:
    """Rung -> difference from regular decoding, where it was measured."""
    out = {}
    for entry in entries:
        found = entry["effects"].get(method, {}).get(way, {})
        if metric in found:
            out[entry["name"]] = found[metric][0]
    return out
