"""Scores of a run: equal to the benchmark's own, independent of its data once counted."""

from __future__ import annotations

import numpy as np
import pytest

from seewhen.benchmarks import benchmark_class
from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.mme import Mme
from seewhen.benchmarks.pope import Pope
from seewhen.errors import InvalidInput, InvalidMethod
from seewhen.runs import stats
from seewhen.runs.scoring import (
    comparable,
    metrics_of,
    read_counts,
    result_of,
    score_records,
    wins_and_losses,
    write_counts,
)
from seewhen.runs.store import Record

SPLITS = ("coco-random", "coco-adversarial")
QUESTIONS = tuple(
    Sample(f"{split}/{i}", f"{i // 3}.jpg", f"Is there a thing {i} in the image?", "yes" if i % 2 else "no", split)
    for split in SPLITS
    for i in range(60)
)


def answers(benchmark, chance, seeds, failed=()):
    rng = np.random.default_rng(round(1000 * chance))
    return [
        Record(
            sample.id,
            seed,
            sample.image,
            "" if sample.id in failed else ("Yes" if (rng.random() < chance) == (sample.truth == "yes") else "No"),
            2,
            error="broken" if sample.id in failed else "",
            facts={"fired": 0.5},
        )
        for seed in seeds
        for sample in benchmark.samples()
    ]


def test_values_are_the_benchmarks_own_averaged_over_seeds():
    pope = Pope(QUESTIONS)
    records = answers(pope, 0.8, (0, 1, 2))
    result = result_of(pope, score_records(pope, records, (0, 1, 2)), records)
    single = [pope.score({r.id: r.answer for r in records if r.seed == seed}).metrics for seed in (0, 1, 2)]
    assert set(result["metrics"]) == set(single[0])
    for name, entry in result["metrics"].items():
        values = [metrics[name] for metrics in single]
        assert entry["value"] == pytest.approx(np.mean(values), abs=1e-5)
        assert entry["low"] <= entry["value"] <= entry["high"]
        assert entry["seed_sd"] == pytest.approx(np.std(values, ddof=1), abs=1e-5)
    assert (result["samples"], result["failures"], result["images"], result["seeds"]) == (360, 0, 20, 3)
    assert result["facts"] == {"fired": 0.5}


def test_failures_are_left_out_and_counted():
    pope = Pope(QUESTIONS)
    records = answers(pope, 0.8, (0,), failed=("coco-random/0", "coco-random/1"))
    scored = score_records(pope, records, (0,))
    result = result_of(pope, scored, records)
    assert (result["failures"], result["first_failure"]) == (2, "broken")
    assert scored.tally.counts["coco-random", "questions"].sum() == 58
    with pytest.raises(InvalidInput, match="Not one sample"):
        score_records(pope, [Record("coco-random/0", 0, "0.jpg", "", error="broken")], (0,))


@pytest.mark.parametrize(
    "benchmark",
    [
        Pope(QUESTIONS),
        Mme(
            tuple(
                Sample(f"{task}/{i // 2}#{i % 2}", str(i // 2), "?", ("yes", "no")[i % 2], task)
                for task in ("existence", "count", "position", "color")
                for i in range(20)
            )
        ),
    ],
    ids=lambda b: b.name,
)
def test_counts_survive_the_disk_and_need_no_data(tmp_path, benchmark):
    records = answers(benchmark, 0.7, (0, 1))
    scored = score_records(benchmark, records, (0, 1))
    write_counts(tmp_path, scored)
    back = read_counts(tmp_path)
    assert back.right == scored.right
    assert back.tally.images == scored.tally.images
    want = stats.intervals(scored.tally, metrics_of(benchmark.summarise))
    assert stats.intervals(back.tally, metrics_of(benchmark_class(benchmark.name).summarise)) == want


def test_chair_goes_through_the_same_door(tmp_path):
    truth = {str(i): frozenset({"dog", "person"}) for i in range(1, 9)}
    chair = Chair(truth, tuple(truth))
    captions = ["A man with a dog.", "A man with a cat and a dog."]
    records = [Record(str(i), 0, str(i), captions[i % 2], 9) for i in range(1, 9)]
    scored = score_records(chair, records, (0,))
    write_counts(tmp_path, scored)
    found = stats.intervals(read_counts(tmp_path).tally, metrics_of(Chair.summarise))
    assert found["chair_s"].value == 50
    assert found["chair_i"].value == 20
    assert found["chair_s"].low < 50 < found["chair_s"].high


def test_pairs_use_images_both_runs_answered_in_full():
    pope = Pope(QUESTIONS)
    a = score_records(pope, answers(pope, 0.9, (0,)), (0,))
    b = score_records(pope, answers(pope, 0.6, (0,), failed=("coco-random/0",)), (0,))
    first, second, left_out = comparable(a, b)
    assert first.images == second.images
    assert left_out == 1
    assert "0.jpg" not in first.images
    found = stats.differences(first, second, metrics_of(pope.summarise), permutations=999)
    assert found["accuracy"].value > 0
    assert found["accuracy"].p < 0.01
    wins, losses, net = wins_and_losses(a, b)
    assert wins > losses
    assert sum(net) == wins - losses


def test_unfinished_runs_are_named(tmp_path):
    with pytest.raises(InvalidInput, match="not finished"):
        read_counts(tmp_path)
    with pytest.raises(InvalidMethod, match="no benchmark"):
        benchmark_class("nonsense")
