"""The ceiling on simulated models whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from seewhen.errors import InvalidInput
from seewhen.verdicts.ceiling import Pairs, ceiling, denied_share, invented_at_recall
from seewhen.verdicts.separation import Ordered, auroc

IMAGES, OBJECTS = 60, 20


def simulated(knows: float, doubts: float = 0.0, seed: int = 0) -> Pairs:
    """A model that says 60 % of what is there and 10 % of what is not; asked, it knows the truth by `knows`."""
    rng = np.random.default_rng(seed)
    image = np.repeat(np.arange(IMAGES), OBJECTS)
    true = rng.random(len(image)) < 0.3
    said = rng.random(len(image)) < np.where(true, 0.6, 0.1)
    odds = knows * np.where(true, 1.0, -1.0) + rng.normal(size=len(image))
    entropy = np.where(said, doubts * np.where(true, -1.0, 1.0) + rng.normal(size=len(image)), np.nan)
    position = np.where(said, rng.integers(0, 60, len(image)), np.nan)
    return Pairs.of(image, true, said, odds, entropy=entropy, position=position)


def test_a_model_that_knows_nothing_better_has_nothing_to_recover() -> None:
    found = ceiling(simulated(0.0), replicates=200)
    assert found.recoverable.low <= 0.02 and abs(found.recoverable.value) < 0.03
    assert found.signals["odds"].auroc.low < 0.5 < found.signals["odds"].auroc.high
    assert found.denied[0.95].value < 0.15


def test_an_oracle_recovers_everything() -> None:
    found = ceiling(simulated(50.0), replicates=200)
    assert found.invented_at_same_recall.value == found.invented_at_same_recall.high == 0
    assert found.recoverable == found.invented_now
    assert found.denied[0.99].value == 1
    assert found.signals["odds"].auroc.low == found.signals["odds"].within_position.low == 1


def test_knowledge_in_between_and_more_of_it_is_more() -> None:
    some, more = (ceiling(simulated(knows), replicates=100) for knows in (0.7, 1.5))
    assert 0 < some.recoverable.value < more.recoverable.value < more.invented_now.value
    assert some.recoverable.low < some.recoverable.value < some.recoverable.high
    denied = [some.denied[keep].value for keep in (0.99, 0.97, 0.95, 0.9)]
    assert denied == sorted(denied)


def test_doubt_while_writing_counts_too() -> None:
    without, with_doubt = (ceiling(simulated(0.0, doubts), replicates=50) for doubts in (0.0, 1.5))
    assert with_doubt.recoverable.value > without.recoverable.value + 0.05
    assert with_doubt.signals["entropy"].auroc.value > 0.9


def test_what_is_said_again_and_again_counts_too() -> None:
    pairs = simulated(0.0)
    rng = np.random.default_rng(9)
    again = rng.binomial(4, np.where(pairs.true, 0.6, 0.1)) / 4
    columns = (pairs.image, pairs.true, pairs.said, pairs.odds)
    without = ceiling(Pairs.of(*columns), replicates=50)
    with_draws = ceiling(Pairs.of(*columns, elsewhere=again), replicates=50)
    assert with_draws.recoverable.low > without.recoverable.value + 0.05
    assert "elsewhere" not in without.signals and with_draws.signals["elsewhere"].auroc.low > 0.7


def test_the_interval_holds_what_many_draws_give() -> None:
    estimate = ceiling(simulated(1.0, seed=5), replicates=300).recoverable
    others = [ceiling(simulated(1.0, seed=seed), replicates=1).recoverable.value for seed in range(10, 30)]
    assert estimate.low < np.mean(others) < estimate.high
    assert 0.4 < (estimate.high - estimate.low) / (4 * np.std(others)) < 2.5


def test_signals_are_calibrated() -> None:
    for each in ceiling(simulated(1.0), replicates=200).calibration:
        assert each.there.low - 0.1 <= each.predicted <= each.there.high + 0.1


def test_a_bin_without_rows_does_not_count() -> None:
    value, true = np.array([1.0, 2.0, 3.0, 4.0]), np.array([False, True, False, True])
    some, ones = np.array([0, 0, 2, 2]), np.ones(4)
    assert auroc(value, true, some, ones) == auroc(value, true, np.array([0, 0, 1, 1]), ones) == 1.0


def test_auroc_is_the_usual_one() -> None:
    rng = np.random.default_rng(0)
    value, true = rng.integers(0, 9, 200).astype(float), rng.random(200) < 0.4
    weights = rng.integers(0, 3, 200).astype(float)
    right, wrong = (np.repeat(value[kind], weights[kind].astype(int)) for kind in (true, ~true))
    expected = mannwhitneyu(right, wrong).statistic / (len(right) * len(wrong))
    assert auroc(value, true, None, weights) == pytest.approx(expected)
    assert auroc(value, true, value.astype(np.int64), weights) == 0.5  # nothing is left within a bin


def test_position_that_explains_everything_leaves_nothing_within_bins() -> None:
    rng = np.random.default_rng(1)
    image, position = np.arange(400) // 4, rng.integers(0, 4, 400).astype(float)
    true = rng.random(400) < (0.9 - 0.25 * position)
    odds = -position + 0.01 * rng.normal(size=400)
    found = ceiling(Pairs.of(image, true, np.ones(400, bool), odds, position=position), replicates=100)
    assert found.signals["odds"].auroc.value > 0.7
    assert found.signals["odds"].within_position.low < 0.5 < found.signals["odds"].within_position.high


def test_ties_are_shared() -> None:
    true, said = np.array([1, 1, 0, 0], bool), np.array([1, 0, 1, 0], bool)
    score = Ordered.of(np.zeros(4))
    assert invented_at_recall(score, np.ones(4), true, said) == 0.5  # one of two true, so one of two invented
    assert denied_share(np.array([2.0, 1.0, 1.0, 0.0]), true, 0.9, np.ones(4)) == 0.5


def test_rows_that_do_not_belong_together() -> None:
    good = simulated(1.0)
    with pytest.raises(InvalidInput, match="belong"):
        Pairs.of(good.image, good.true[:-1], good.said, good.odds)
    with pytest.raises(InvalidInput, match="finite"):
        Pairs.of(good.image, good.true, good.said, good.odds * np.nan)
    with pytest.raises(InvalidInput, match="images"):
        Pairs.of([0, 0], [True, False], [True, True], [0.0, 0.0])
    with pytest.raises(InvalidInput, match="wrongly"):
        Pairs.of(good.image, good.true, good.said & good.true, good.odds)
