"""The protocol every benchmark follows.

A benchmark gives `Sample`s, turns each into a prompt, and scores answers. A score keeps, besides its
metrics, one `Row` of integer counts per sample: every metric is a function of *sums* of these counts
(`Benchmark.summarise`), so whoever resamples images only has to add up rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from seewhen.errors import InvalidInput

# group -> name of a count -> its sum over the rows of the group
Totals = Mapping[str, Mapping[str, float]]


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

    def summarise(self, totals: Totals) -> dict[str, float]:
        """Metrics from sums of counts. Pure, so that a bootstrap may call it on resampled sums."""
        ...


def add_up(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Sums of the rows' counts, group by group, in the order in which groups first occur."""
    totals: dict[str, dict[str, float]] = {}
    for row in rows:
        sums = totals.setdefault(row.group, {})
        for name, count in row.counts.items():
            sums[name] = sums.get(name, 0) + count
    return totals


def pool(totals: Totals) -> dict[str, float]:
    """The sums over all groups."""
    pooled: dict[str, float] = {}
    for sums in totals.values():
        for name, count in sums.items():
            pooled[name] = pooled.get(name, 0) + count
    return pooled


def percent(part: float, whole: float) -> float:
    """100 * part / whole, and 0 where there is nothing to divide by."""
    return 100.0 * part / whole if whole else 0.0


def harmonic_mean(a: float, b: float) -> float:
    """F1 of a precision and a recall, and 0 where both are 0."""
    return 2 * a * b / (a + b) if a + b else 0.0


def refuse_unknown(answers: Mapping[str, str], known: Iterable[str], benchmark: str) -> None:
    """Answers to questions that were never asked mean that two files do not belong together."""
    unknown = sorted(answers.keys() - set(known))
    if unknown:
        shown = ", ".join(unknown[:3]) + (" ..." if len(unknown) > 3 else "")
        raise InvalidInput(
            f"{len(unknown)} of {len(answers)} answers belong to no {benchmark} sample: {shown}.",
            "Check that answers and questions are of the same benchmark and split.",
        )
