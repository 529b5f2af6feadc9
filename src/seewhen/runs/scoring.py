"""From records to a result: scores seed by seed, counts per image, intervals.

Besides `result.json` a finished run holds `counts.json`: what every image adds to the sums. Reports and
paired tests work from it alone, so they need neither the benchmark's files nor the images.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from seewhen.atomic import write
from seewhen.benchmarks.base import Benchmark, Row
from seewhen.benchmarks.sums import Sum
from seewhen.errors import InvalidInput
from seewhen.reading import check_form, expecting, read_json
from seewhen.runs import file_forms, stats
from seewhen.runs.stats import Array, Metrics, Tally
from seewhen.runs.store import Record

COUNTS = "counts.json"
CountKey = tuple[str, str]  # group, name of the count
Summarise = Callable[[Mapping[str, Mapping[str, Sum]]], Mapping[str, Sum]]


@dataclass(frozen=True)
class Scored:
    """Counts of a run per image and seed, and which questions were answered rightly."""

    tally: Tally  # keys of the counts are (group, name)
    right: Mapping[str, tuple[int | None, ...]]  # sample id -> 1, 0 or None (no answer), per seed
    cluster: Mapping[str, str]  # sample id -> image

    def answered(self) -> dict[str, frozenset[str]]:
        """For each image the samples that have an answer with every seed."""
        found: dict[str, set[str]] = {image: set() for image in self.tally.images}
        for sample, outcomes in self.right.items():
            if None not in outcomes:
                found[self.cluster[sample]].add(sample)
        return {image: frozenset(samples) for image, samples in found.items()}


def score_records(benchmark: Benchmark, records: Sequence[Record], seeds: Sequence[int]) -> Scored:
    """Counts of all records; those without an answer add nothing."""
    rows: list[tuple[int, Row]] = []
    for place, seed in enumerate(seeds):
        answers = {r.id: r.answer for r in records if r.seed == seed and not r.error}
        found = benchmark.score(answers).rows
        _check_complete(benchmark.name, answers, found)
        rows += [(place, row) for row in found]
    images = {image: i for i, image in enumerate(dict.fromkeys(row.cluster for _, row in rows))}
    counts: dict[Any, Array] = {}
    right: dict[str, list[int | None]] = {}
    cluster: dict[str, str] = {}
    for place, row in rows:
        for name, count in row.counts.items():
            array = counts.setdefault((row.group, name), np.zeros((len(images), len(seeds))))
            array[images[row.cluster], place] += count
        right.setdefault(row.id, [None] * len(seeds))[place] = row.right
        cluster[row.id] = row.cluster
    if not rows:
        raise InvalidInput(
            "Not one sample has an answer, so there is nothing to score.",
            f"The first failure: {records[0].error}" if records else "",
        )
    return Scored(Tally(tuple(images), counts), {k: tuple(v) for k, v in right.items()}, cluster)


def _check_complete(benchmark: str, answers: Mapping[str, str], rows: Sequence[Row]) -> None:
    """Refuse a score that leaves answers out, or counts what was not answered."""
    wrong = sorted(answers.keys() ^ {row.id for row in rows})
    if wrong:
        raise InvalidInput(
            f"{benchmark} has {len(rows)} rows for {len(answers)} answers; they differ in {wrong[0]}.",
            "Its `rows` must give one row, of the same id, for each answer.",
        )


def metrics_of(summarise: Summarise) -> Metrics:
    """A benchmark's `summarise` as a function of flat counts."""

    def metrics(totals: Mapping[Any, Array]) -> Mapping[str, Array]:
        nested: dict[str, dict[str, Sum]] = {}
        for (group, name), total in totals.items():
            nested.setdefault(group, {})[name] = total
        return cast(Mapping[str, Array], summarise(nested))

    return metrics


def result_of(benchmark: Benchmark, scored: Scored, records: Sequence[Record]) -> dict[str, Any]:
    """The content of result.json. Depends on the records alone, so it repeats exactly."""
    found = stats.intervals(scored.tally, metrics_of(benchmark.summarise))
    lost = next((name for name, interval in found.items() if not math.isfinite(interval.value)), None)
    if lost is not None:
        raise InvalidInput(
            f"{benchmark.name} gives no number for {lost}.",
            "Its `summarise` divides by nothing? `percent` and `divide` make that 0.",
        )
    failures = [record for record in records if record.error]
    answers = [record for record in records if not record.error]
    facts: dict[str, list[float]] = {}
    for record in answers:
        for name, value in record.facts.items():
            facts.setdefault(name, []).append(value)
    return {
        "format": 1,
        "benchmark": benchmark.name,
        "samples": len(records),
        "failures": len(failures),
        "first_failure": failures[0].error if failures else None,
        "images": len(scored.tally.images),
        "seeds": scored.tally.seeds,
        "tokens": sum(record.tokens for record in answers),
        "facts": {name: round(sum(values) / len(values), 6) for name, values in sorted(facts.items())},
        "metrics": {name: _plain(interval) for name, interval in found.items()},
    }


def _plain(interval: stats.Interval) -> dict[str, Any]:
    """JSON has no NaN: a spread over seeds that does not exist is null."""
    plain = asdict(interval)
    return {
        name: (None if isinstance(value, float) and value != value else _short(value))
        for name, value in plain.items()
        if name not in ("images", "seeds")
    }


def _short(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) else value


def write_counts(path: Path, scored: Scored) -> None:
    """Writes counts.json: whole numbers, compact."""
    plain = {
        "format": 1,
        "images": scored.tally.images,
        "counts": plain_counts(scored.tally),
        "right": {sample: list(outcomes) for sample, outcomes in scored.right.items()},
        "cluster": dict(scored.cluster),
    }
    write(path / COUNTS, json.dumps(plain, ensure_ascii=False, separators=(",", ":")) + "\n", durable=True)


def plain_counts(tally: Tally) -> dict[str, dict[str, list[list[int]]]]:
    """Counts by group and name, for JSON."""
    groups: dict[str, dict[str, list[list[int]]]] = {}
    for key, array in tally.counts.items():
        group, name = cast(CountKey, key)
        groups.setdefault(group, {})[name] = array.astype(int).tolist()
    return groups


def counts_from(plain: Mapping[str, Mapping[str, Any]]) -> dict[Any, Array]:
    """The inverse of `plain_counts`."""
    return {
        (group, name): np.asarray(values, dtype=np.float64)
        for group, names in plain.items()
        for name, values in names.items()
    }


def read_counts(path: Path) -> Scored:
    """The inverse of `write_counts`."""
    again = "Run its `seewhen eval` command again to go on."
    if not (path / COUNTS).exists():
        raise InvalidInput(f"{path} is not finished: it has no {COUNTS}.", again)
    plain = read_json(path / COUNTS)
    check_form(file_forms.Counts, plain, path / COUNTS, again)
    with expecting(path / COUNTS, again):  # rows of different lengths
        counts = counts_from(plain["counts"])
    images, cluster = tuple(plain["images"]), plain["cluster"]
    if not cluster.keys() >= plain["right"].keys() or not set(images) >= set(cluster.values()):
        raise InvalidInput(f"{path / COUNTS} counts samples of images that it does not name.", again)
    return Scored(Tally(images, counts), {k: tuple(v) for k, v in plain["right"].items()}, cluster)


def check_counts(scored: Mapping[str, Scored], summary: Metrics, metrics: Sequence[str]) -> None:
    """Refuse counts that do not give the metrics of the result beside them, or not those of the other runs."""
    names = {frozenset(each.tally.counts) for each in scored.values()}
    for label, each in scored.items():
        with expecting(f"{COUNTS} of {label}", "Run `seewhen eval` again to score anew."):
            given = summary({key: array.sum(axis=0) for key, array in each.tally.counts.items()})
            if len(names) > 1 or not given.keys() >= set(metrics):
                raise LookupError("it belongs to another result")


def comparable(a: Scored, b: Scored) -> tuple[Tally, Tally, int]:
    """Both tallies on the images whose samples both runs answered, and how many images were left out."""
    here, there = a.answered(), b.answered()
    common = [image for image in a.tally.images if here[image] and here[image] == there.get(image)]
    left_out = len(set(a.tally.images) | set(b.tally.images)) - len(common)
    if not common:
        raise InvalidInput("The two runs share no image with the same questions, so they cannot be paired.")
    return a.tally.only(common), b.tally.only(common), left_out


def wins_and_losses(a: Scored, b: Scored) -> tuple[int, int, list[int]]:
    """Questions only a has right, only b has right, and the net per image; first seed of both."""
    wins = losses = 0
    net: dict[str, int] = {}
    for sample, outcomes in a.right.items():
        other = b.right.get(sample, (None,))
        if outcomes[0] is None or other[0] is None:
            continue
        step = outcomes[0] - other[0]
        wins, losses = wins + (step > 0), losses + (step < 0)
        net[a.cluster[sample]] = net.get(a.cluster[sample], 0) + step
    return wins, losses, list(net.values())
