"""Finished runs over drawn scenes whose answers are made up: no model is needed for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import seewhen
from seewhen.benchmarks.base import Sample
from seewhen.runs.evaluate import Ask, configuration
from seewhen.runs.scoring import result_of, score_records, write_counts
from seewhen.runs.store import Record, RunStore

MODEL = {"name": "packaged", "dtype": "float32"}
Facts = Callable[[Sample], Mapping[str, float]]


def write_run(
    folder: Path,
    ask: Ask,
    method: str,
    answer: Callable[[Sample], str],
    facts: Facts = lambda _: {},
    told: Callable[[Sample], Mapping[str, Any]] = lambda _: {},
) -> Path:
    """A run of `method` in which each sample got `answer(sample)`."""
    benchmark = ask.load()
    samples = list(benchmark.samples())
    config = configuration(ask, benchmark, samples, MODEL, seewhen.method(method))
    records = [
        Record(s.id, 0, s.image, answer(s), len(answer(s).split()), facts=facts(s), told=told(s)) for s in samples
    ]
    path = folder / f"{ask.benchmark}-{method}"
    with RunStore.open(path, config, {"device_name": "x"}) as store:
        store.append(records)
        scored = score_records(benchmark, records, (0,))
        write_counts(path, scored)
        store.finish([record.key for record in records], result_of(benchmark, scored, records))
    return path
