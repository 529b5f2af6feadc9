"""The protocol every benchmark follows.

A benchmark gives `Sample`s, turns each into a prompt, and scores answers. A score keeps, besides its
metrics, one `Row` of integer counts per sample: every metric is a function of *sums* of these counts
(`Benchmark.summarise`), so whoever resamples images only has to add up rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from seewhen.errors import InvalidInput

# A sum of counts, or an array of such sums: one per resample of a bootstrap.
Sum = float | NDArray[np.float64]
# group -> name of a count -> its sum over the rows of the group
Totals = Mapping[str, Mapping[str, Sum]]


@dataclass(frozen=True)
class Sample:
    """One question about one image."""

    id: str  # unique within the benchmark
    image: str  # file name or id, as the benchmark's own files give it; also the cluster of the bootstrap
    question: str  # as published, without any paper's wrapper or suffix
    truth: str | tuple[str, ...]  # "yes" / "no", or the objects of the image; "" where not published
    split: str  # "coco-random", "existence", "generative" ...: the group its counts are added up in


@dataclass(frozen=True)
class Row:
    """What one sample adds to the sums.

    `right` is 1 or 0 for the sample as a whole (a yes/no question answered correctly, a caption without
    a hallucination), for paired tests. `detail` explains the row to a reader; no metric depends on it.
    """

    id: str
    cluster: str
    group: str
    right: int
    counts: Mapping[str, int]
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """Metrics in percent (or points, where the benchmark counts points) and the rows behind them.

    A metric of one group is named `group/metric`; a bare name is the benchmark's headline figure.
    """

    benchmark: str
    settings: Mapping[str, str]
    metrics: Mapping[str, float]
    rows: tuple[Row, ...]
    missing: int = 0  # samples without an answer; they are left out of the metrics

    def to_json(self, rows: bool = True) -> dict[str, Any]:
        """Plain data for `json.dumps`."""
        plain: dict[str, Any] = {
            "benchmark": self.benchmark,
            "settings": dict(self.settings),
            "metrics": dict(self.metrics),
            "samples": len(self.rows),
            "missing": self.missing,
        }
        if rows:
            plain["rows"] = [asdict(row) for row in self.rows]
        return plain

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Score:
        """The inverse of `to_json`."""
        return Score(
            benchmark=plain["benchmark"],
            settings=plain["settings"],
            metrics=plain["metrics"],
            rows=tuple(Row(**row) for row in plain["rows"]),
            missing=plain["missing"],
        )


class Benchmark(Protocol):
    """What `seewhen eval` needs to know of a benchmark."""

    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Mapping[str, str]:
        """Whatever changes the score: parser, lemmatizer, data files. Goes into the run's manifest."""
        ...

    @property
    def default_style(self) -> str:
        """The prompt style used where none is named."""
        ...

    def samples(self) -> Sequence[Sample]: ...

    def prompt(self, sample: Sample, style: str) -> str:
        """The text shown to the model: see `prompts.py` for the styles."""
        ...

    def score(self, answers: Mapping[str, str]) -> Score:
        """Scores answers given by sample id; an id that is no sample's is an error."""
        ...

    def summarise(self, totals: Totals) -> dict[str, Sum]:
        """Metrics from sums of counts. Pure, and arrays of sums give arrays of metrics, so that a
        bootstrap calls it once."""
        ...


def add_up(rows: Iterable[Row]) -> dict[str, dict[str, Sum]]:
    """Sums of the rows' counts, group by group, in the order in which groups first occur."""
    totals: dict[str, dict[str, Sum]] = {}
    for row in rows:
        sums = totals.setdefault(row.group, {})
        for name, count in row.counts.items():
            sums[name] = sums.get(name, 0) + count
    return totals


def make_score(benchmark: Benchmark, rows: Iterable[Row], missing: int) -> Score:
    """The score of these rows."""
    rows = tuple(rows)
    metrics = {name: float(value) for name, value in benchmark.summarise(add_up(rows)).items()}
    return Score(benchmark.name, benchmark.settings, metrics, rows, missing)


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


def refuse_unknown(answers: Mapping[str, str], known: Iterable[str], benchmark: str) -> None:
    """Answers to questions that were never asked mean that two files do not belong together."""
    unknown = sorted(answers.keys() - set(known))
    if unknown:
        shown = ", ".join(unknown[:3]) + (" ..." if len(unknown) > 3 else "")
        raise InvalidInput(
            f"{len(unknown)} of {len(answers)} answers belong to no {benchmark} sample: {shown}.",
            "Check that answers and questions are of the same benchmark and split.",
        )
