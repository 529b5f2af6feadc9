"""How much of what a model knows better than it says does a method recover?

Both are shares of invented objects, each counted once a caption: what the method takes away, over what `ceiling`
takes away at the recall of regular captions. Scenes are drawn again for both together, the seeds of a rung
side by side; the method's change of recall stands beside, since it is only nearly the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ladder.measures import Array, believed, cut_off, models, named_once, recoverable
from ladder.rungs import kind_of
from seewhen.errors import InvalidInput
from seewhen.verdicts.ceiling import REPLICATES, Draws, Estimate, columns, invented_at_recall, out_of_fold
from seewhen.verdicts.separation import Ordered

ASKING = ("confirm", "confirm chosen", "confirm 2 drafts", "confirm 4 drafts")
ENOUGH = 0.05  # a recoverable share from which on recovering it is promised anything


@dataclass(frozen=True)
class Recovered:
    """One method on the seeds of a rung that it was run on."""

    models: tuple[str, ...]
    ceiling: Estimate  # points, likewise the two below
    taken: Estimate
    recall: Estimate
    share: Estimate  # percent of the ceiling

    def to_json(self) -> dict[str, Any]:
        """Value, low and high of each, as tables show them."""
        ends = {"recoverable": self.ceiling, "recovered": self.taken, "recall": self.recall, "share": self.share}
        found = {name: [round(end, 3) for end in (each.value, each.low, each.high)] for name, each in ends.items()}
        return {"models": list(self.models), **found}


def by_rung(folder: Path, way: str, replicates: int = 1000) -> list[dict[str, Any]]:
    """What each form of `confirm` recovers on every rung with enough to recover, as plain data."""
    return [
        {"rung": kind, "method": method, **found.to_json()}
        for kind, names in promising(folder, models(folder), way).items()
        for method in ASKING
        if (found := recovered(folder, names, method, way, replicates))
    ]


def by_model(folder: Path, replicates: int = 1000) -> list[dict[str, Any]]:
    """The same for single models, greedily with four drafts: those that have enough to recover themselves."""
    return [
        {"rung": name, "method": ASKING[-1], **found.to_json()}
        for name in models(folder)
        if promising(folder, (name,)) and (found := recovered(folder, (name,), ASKING[-1], "greedy", replicates))
    ]


def cut_by_rung(folder: Path) -> list[dict[str, Any]]:
    """A control beside it: the same rungs' regular captions, cut off after some sentences; greedy."""
    return [
        {"rung": kind, "models": names, "sentences": sentences, **cut_off(folder, names, sentences)}
        for kind, names in promising(folder, models(folder)).items()
        for sentences in (1, 2, 3)
    ]


def promising(folder: Path, names: Sequence[str], way: str = "greedy") -> dict[str, list[str]]:
    """Rung -> its models, of rungs whose models have at least `ENOUGH` to recover on average."""
    by_kind: dict[str, list[tuple[str, float]]] = {}
    for name in names:
        try:
            value = recoverable(folder, name, way, replicates=1).recoverable.value
        except (InvalidInput, FileNotFoundError):
            continue
        by_kind.setdefault(kind_of(name), []).append((name, value))
    return {
        kind: [name for name, _ in found]
        for kind, found in by_kind.items()
        if np.mean([value for _, value in found]) >= ENOUGH
    }


def recovered(
    folder: Path, names: Sequence[str], method: str, way: str, replicates: int = REPLICATES
) -> Recovered | None:
    """None where no model of these was asked with the method."""
    files = [name for name in names if (folder / "results" / name / f"{method}.npz").is_file()]
    found = {name: part for name in files if (part := _part(folder, name, method, way)) is not None}
    parts = list(found.values())
    if not parts:
        return None
    draws = Draws(np.arange(parts[0].scenes), 0, replicates)

    def of(statistic: Callable[[_Part, Array], float]) -> Callable[[Array], float]:
        return lambda weights: float(np.mean([statistic(part, weights) for part in parts]))

    ceiling, taken = of(_Part.ceiling), of(_Part.taken)
    return Recovered(
        tuple(found),
        _scaled(draws.estimate(ceiling)),
        _scaled(draws.estimate(taken)),
        _scaled(draws.estimate(of(_Part.recall))),
        # Where nothing can be recovered of the scenes drawn, any share of it is: as high as can be.
        _scaled(draws.estimate(lambda weights: taken(weights) / max(ceiling(weights), 1e-6))),
    )


@dataclass(frozen=True)
class _Part:
    """One model: counts by scene (named, invented, right, there), and all pairs in the order of belief."""

    regular: Array
    method: Array
    order: Ordered
    true: Array
    said: Array

    @property
    def scenes(self) -> int:
        return len(self.regular)

    def ceiling(self, weights: Array) -> float:
        rows = np.repeat(weights, len(self.true) // self.scenes)
        now = rows[self.said & ~self.true].sum() / rows[self.said].sum()
        return float(now) - invented_at_recall(self.order, rows, self.true, self.said)

    def taken(self, weights: Array) -> float:
        before, after = weights @ self.regular, weights @ self.method
        return float(before[1] / before[0] - after[1] / after[0])

    def recall(self, weights: Array) -> float:
        before, after = weights @ self.regular, weights @ self.method
        return float(after[2] / after[3] - before[2] / before[3])


def _part(folder: Path, name: str, method: str, way: str) -> _Part | None:
    regular, after = (named_once(folder, name, each, way) for each in ("regular", method))
    if regular is None or after is None:  # the method refused
        return None
    pairs = believed(folder, name, way)
    order = Ordered.of(out_of_fold(columns(pairs), pairs, 0))
    return _Part(regular, after, order, pairs.true, pairs.said)


def _scaled(found: Estimate) -> Estimate:
    return Estimate(*(100 * each for each in (found.value, found.low, found.high)))
