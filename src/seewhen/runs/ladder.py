"""A model beside the rungs of the ladder: small models made in different ways, with what methods do to each.

What predicts was fixed before any rung was trained: how far answers depend on the image, how usual its words are
without it, the recoverable share, what its answers to questions are worth. Linear, with a ridge; each rung is
predicted from the others, and that error is the interval. Where it is no smaller than that of the rungs' mean, the
mean is told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seewhen.reading import parse_json

if TYPE_CHECKING:
    from seewhen.runs.diagnosis import Diagnosis
    from seewhen.runs.diagnostics import Diagnostics

Array = NDArray[np.float64]
PREDICTORS = ("divergence", "usual_without", "recoverable", "asked_auroc")
RIDGE = 1.0
LEAST = 8  # rungs, below which nothing is predicted
WAYS = ("greedy", "sampled")


@dataclass(frozen=True)
class Rung:
    """One small model: what it is like, and differences from regular decoding, method -> way -> metric."""

    name: str
    diagnostics: Mapping[str, float]
    effects: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]


@dataclass(frozen=True)
class Outside:
    """A diagnostic of the model that no rung has: beyond their range."""

    name: str
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Prediction:
    """What a method would do to a metric, in points; `low` and `high` are twice the error of predicting rungs."""

    method: str
    way: str
    metric: str
    value: float
    low: float
    high: float
    rungs: int
    error: float  # root mean square, each rung from the others
    error_of_mean: float  # of telling each rung the mean of the others
    by: tuple[str, ...]  # diagnostics; none: the mean of the rungs
    outside: tuple[Outside, ...]


def ladder() -> tuple[Rung, ...]:
    """The rungs that come along; none where they do not."""
    path = resources.files("seewhen.runs") / "data" / "ladder.json"
    if not path.is_file():
        return ()
    content = parse_json(path.read_text("utf-8"), "the packaged ladder", "Install the package again.")
    return rungs_of(content)


def rungs_of(content: Mapping[str, Any]) -> tuple[Rung, ...]:
    """From the file's content."""
    return tuple(Rung(each["name"], each["diagnostics"], each["effects"]) for each in content["rungs"])


def scalars(found: Diagnostics, diagnosis: Diagnosis | None = None) -> dict[str, float]:
    """Diagnostics as the rungs have them: a number each."""
    told = {name: value for name, value in vars(found).items() if isinstance(value, float)}
    layers = [value for value in found.image_attention if value is not None]
    told |= {"image_attention": _mean(layers), "image_attention_deep": _mean(layers[2 * len(layers) // 3 :])}
    points = [value for value in found.pointing or () if value is not None]
    if points:
        told["pointing"] = max(points)
    for name in ("negative_scores", "to_regular", "to_uniform"):
        told[f"tilt_{name}"] = _mean(getattr(found.tilt, name))
    told["effective_patches"] = _mean(found.tilt.effective_before) / found.tilt.patches
    told["usual_without"] = -math.log(found.perplexity_without)
    for way, one in (diagnosis.ways if diagnosis is not None else {}).items():
        told[f"recoverable_{way}"] = 100 * one.recoverable.value
    return told


def predictions(model: Mapping[str, float], rungs: Sequence[Rung], metric: str = "chair_i") -> list[Prediction]:
    """What each method that enough rungs know would do to a model with these diagnostics."""
    methods = dict.fromkeys(name for rung in rungs for name in rung.effects)
    found = []
    for method in methods:
        for way in WAYS:
            with_it = {r.name: r for r in rungs if metric in r.effects.get(method, {}).get(way, {})}
            names, alike = comparable({name: rung.diagnostics for name, rung in with_it.items()}, way, model)
            own = [with_it[name] for name in alike]
            effects = np.array([rung.effects[method][way][metric][0] for rung in own])
            if len(own) >= LEAST:
                found.append(_predicted((method, way, metric), model, own, effects, names))
    return found


def comparable(
    rungs: Mapping[str, Mapping[str, float]], way: str, model: Mapping[str, float] | None = None
) -> tuple[list[str], list[str]]:
    """The predictors to use, and the names of the rungs that have them all. A predictor that too few rungs have is
    left out; of the others, a rung that lacks one."""
    names = [f"{name}_{way}" if name == "recoverable" else name for name in PREDICTORS]
    names = [name for name in names if model is None or name in model]

    def all_having(wanted: Sequence[str]) -> list[str]:
        return [rung for rung, facts in rungs.items() if all(name in facts for name in wanted)]

    used: list[str] = []
    for name in names:
        if len(all_having([*used, name])) >= LEAST:
            used.append(name)
    return used, all_having(used)


def _predicted(
    what: tuple[str, str, str],
    model: Mapping[str, float],
    rungs: Sequence[Rung],
    effects: Array,
    names: Sequence[str],
) -> Prediction:
    table = np.array([[rung.diagnostics[name] for name in names] for rung in rungs]).reshape(len(rungs), -1)
    at = np.array([model[name] for name in names])
    error_of_mean = _error(np.zeros((len(rungs), 0)), effects)
    error = _error(table, effects)
    used = bool(names) and error < error_of_mean
    fit = Fit.of(table if used else table[:, :0], effects)
    value, spread = fit.at(at if used else at[:0])
    half = 2 * (error if used else error_of_mean) * spread
    outside = tuple(
        Outside(name, model[name], float(column.min()), float(column.max()))
        for name, column in zip(names, table.T, strict=True)
        if not column.min() <= model[name] <= column.max()
    )
    by = tuple(names) if used else ()
    return Prediction(*what, value, value - half, value + half, len(rungs), error, error_of_mean, by, outside)


@dataclass(frozen=True)
class Fit:
    """Ridge regression on standardised columns."""

    mean: Array
    spread: Array
    weights: Array
    base: float
    inverse: Array
    rows: int

    @staticmethod
    def of(table: Array, values: Array) -> Fit:
        """`table` is (rows, columns), `values` (rows,)."""
        mean, spread = table.mean(axis=0), table.std(axis=0)
        spread = np.where(spread > 0, spread, 1.0)
        z = (table - mean) / spread
        inverse = np.linalg.inv(z.T @ z + RIDGE * np.eye(z.shape[1]))
        weights = inverse @ z.T @ (values - values.mean())
        return Fit(mean, spread, weights, float(values.mean()), inverse, len(values))

    def at(self, row: Array) -> tuple[float, float]:
        """The value, and by how much its error exceeds that at the middle of the rungs: it grows outside them."""
        z = (row - self.mean) / self.spread
        return self.base + float(z @ self.weights), math.sqrt(1 + float(z @ self.inverse @ z))


def _error(table: Array, values: Array) -> float:
    """Root mean square error of predicting each row from all others."""
    every = np.arange(len(values))
    told = [Fit.of(table[every != row], values[every != row]).at(table[row])[0] for row in every]
    return float(np.sqrt(np.mean((np.array(told) - values) ** 2)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
