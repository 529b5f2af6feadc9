"""Slips in a benchmark of another package are told, and never end in a score."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from runs.tiny_checkpoint import write
from seewhen import method
from seewhen.benchmarks.base import Row, Sample
from seewhen.errors import InvalidInput
from seewhen.plugin import Benchmark, Metric, Options, Sum, Totals, percent, pool
from seewhen.runs.evaluate import Ask, evaluate
from seewhen.runs.scoring import result_of, score_records
from seewhen.runs.store import Record

Rows = Callable[[Mapping[str, str]], Sequence[Row]]


def row(key: str, right: float = 1, image: str = "0.png") -> Row:
    return Row(key, image, "all", 1, {"asked": 1, "right": right})  # type: ignore[dict-item]


@dataclass(frozen=True)
class Own(Benchmark):
    name: ClassVar = "own"
    metrics: ClassVar = (Metric("accuracy", "Accuracy", 1),)

    ids: tuple[object, ...] = ("1", "2")
    image: object = "0.png"
    given: Rows = lambda answers: [row(key) for key in answers]

    def samples(self) -> tuple[Sample, ...]:
        return tuple(Sample(each, self.image, "Is it?", "yes", "all") for each in self.ids)  # type: ignore[arg-type]

    def rows(self, answers: Mapping[str, str]) -> Sequence[Row]:
        return self.given(answers)

    @classmethod
    def summarise(cls, totals: Totals) -> dict[str, Sum]:
        sums = pool(totals)
        return {"accuracy": percent(sums["right"], sums["asked"])}

    @classmethod
    def open(cls, folder: Path, options: Options) -> Own:
        return cls()


class Undefined(Own):
    @classmethod
    def summarise(cls, totals: Totals) -> dict[str, Sum]:
        return {"accuracy": pool(totals)["right"] * math.nan}


RECORDS = [Record(key, 0, "0.png", "Yes", 1) for key in ("1", "2")]


def test_one_that_slips_nowhere() -> None:
    own = Own()
    assert result_of(own, score_records(own, RECORDS, (0,)), RECORDS)["metrics"]["accuracy"]["value"] == 100


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda answers: [row(key, 0.5) for key in answers], r"own counts right=0\.5 .* no whole number"),
        (lambda answers: [row(key, math.nan) for key in answers], "own counts right=nan"),
        (lambda answers: [row("1")], "own has 1 rows for 2 answers; they differ in 2"),
        (lambda answers: [row("1"), row("3")], "they differ in 2"),
        (lambda answers: [row("1"), row("1")], "own counts the sample 1 twice"),
    ],
)
def test_rows(given: Rows, told: str) -> None:
    """A half would be cut off where counts are kept, and be another figure in the report than in the run."""
    with pytest.raises(InvalidInput, match=told):
        score_records(Own(given=given), RECORDS, (0,))


def test_a_metric_that_is_no_number() -> None:
    own = Undefined()
    with pytest.raises(InvalidInput, match="own gives no number for accuracy"):
        result_of(own, score_records(own, RECORDS, (0,)), RECORDS)


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (Own(ids=()), "own asks no questions"),
        (Own(ids=("1", "1")), "own has the sample 1 twice"),
        (Own(ids=(1, 2)), "own has the sample 1 about '0.png': one is no text"),
        (Own(image=7), "own has the sample '1' about 7: one is no text"),
    ],
)
def test_samples_are_looked_at_before_anybody_is_asked(own: Own, told: str, tmp_path: Path) -> None:
    """A run with ids that are numbers would be written and never read again."""
    (tmp_path / "tiny").mkdir()
    ask = Ask("own", data=str(tmp_path), model=str(write(tmp_path / "tiny")))
    with pytest.raises(InvalidInput, match=told):
        evaluate(ask, method("regular"), tmp_path / "runs", prepared=(own, {"name": "tiny"}))
    assert not (tmp_path / "runs").exists()
