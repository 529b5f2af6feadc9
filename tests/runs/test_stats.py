"""Statistics: known values, identities, coverage on simulated data."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.errors import InvalidInput
from seewhen.runs.stats import (
    Tally,
    differences,
    estimate,
    holm,
    intervals,
    mcnemar_clustered,
    pair,
    swap_test,
)


def ratio(totals):
    return {"it": 100 * totals["right"] / np.maximum(totals["asked"], 1)}


def f1(totals):
    return {"it": 2 * totals["tp"] / np.maximum(2 * totals["tp"] + totals["fp"] + totals["fn"], 1)}


def interval(*args, **options):
    return intervals(*args, **options)["it"]


def difference(*args, **options):
    return differences(*args, **options)["it"]


def tally(right, asked=None):
    right = np.asarray(right, dtype=float)
    right = right[:, None] if right.ndim == 1 else right
    asked = np.ones_like(right) if asked is None else np.asarray(asked, dtype=float).reshape(right.shape)
    return Tally(tuple(f"i{k}" for k in range(len(right))), {"right": right, "asked": asked})


# --- known values -----------------------------------------------------------------------------------


def test_equal_on_paper_is_equal():
    """The same answers with other seeds: sums in another order differ in the last digit, which is nothing."""
    right = np.array([[1, 2, 5], [3, 4, 1], [2, 6, 3], [5, 5, 1]], dtype=float)
    asked = np.full_like(right, 7)
    d = difference(tally(right, asked), tally(np.roll(right, 1, axis=1), asked), ratio)
    assert (d.value, d.low, d.high, d.p) == (0, 0, 0, 1) and d.changed == 4


def test_holm_example():
    # Sorted: 4 * 0.01, then max(0.04, 3 * 0.02), then 2 * 0.03, then the running maximum.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([]) == []


def test_clustered_mcnemar_with_single_pairs_is_mcnemar():
    wins, losses = 31, 17
    got = mcnemar_clustered([1] * wins + [-1] * losses + [0] * 400)
    assert got.z**2 == pytest.approx((wins - losses) ** 2 / (wins + losses))


def test_swap_test_with_single_pairs_is_exact_mcnemar():
    from scipy.stats import binomtest

    wins, losses, same = 14, 5, 60
    a = tally([1] * wins + [0] * losses + [1] * same)
    b = tally([0] * wins + [1] * losses + [1] * same)
    got = difference(a, b, ratio, permutations=40_000)
    assert got.p == pytest.approx(binomtest(wins, wins + losses).pvalue, abs=0.006)
    assert got.value == pytest.approx(100 * (wins - losses) / (wins + losses + same))


def test_swap_test_alone_gives_the_p_values_of_differences():
    a, b = tally([1] * 14 + [0] * 5 + [1] * 60), tally([0] * 14 + [1] * 5 + [1] * 60)
    assert swap_test(a, b, ratio, 999) == {"it": difference(a, b, ratio, permutations=999).p}


def test_interval_agrees_with_the_binomial_for_independent_answers():
    rng = np.random.default_rng(3)
    right = rng.random(2000) < 0.8
    got = interval(tally(right), ratio)
    share = right.mean()
    half = 196 * math.sqrt(share * (1 - share) / 2000)
    assert got.value == pytest.approx(100 * share)
    assert got.low == pytest.approx(got.value - half, abs=0.25)
    assert got.high == pytest.approx(got.value + half, abs=0.25)
    assert math.isnan(got.seed_sd)


def test_clustering_widens_the_interval():
    """Six identical answers per image are one answer: the interval must be sqrt(6) wider than naive."""
    rng = np.random.default_rng(5)
    image = (rng.random(300) < 0.7).astype(float)
    clustered = interval(tally(6 * image, np.full(300, 6)), ratio)
    naive = interval(tally(np.repeat(image, 6)), ratio)
    assert (clustered.high - clustered.low) / (naive.high - naive.low) == pytest.approx(6**0.5, rel=0.12)


def test_flat_data_is_said_to_be_flat():
    got = interval(tally(np.ones(30)), ratio)
    assert (got.value, got.low, got.high, got.flat) == (100, 100, 100, True)
    assert not interval(tally([1, 0, 1, 1]), ratio).flat


# --- coverage ---------------------------------------------------------------------------------------


def simulate(rng, images=80, questions=6, seeds=1, image_sd=1.0):
    """Yes/no answers with an effect per image."""
    effect = rng.normal(0, image_sd, images)[:, None, None]
    chance = 1 / (1 + np.exp(-(0.8 + effect)))
    right = (rng.random((images, questions, seeds)) < chance).sum(axis=1)
    return tally(right, np.full((images, seeds), questions))


def truth(image_sd):
    z = np.random.default_rng(0).normal(0, image_sd, 400_000)
    return 100 * float((1 / (1 + np.exp(-(0.8 + z)))).mean())


@pytest.mark.parametrize("seeds", [1, 5])
def test_coverage_of_the_clustered_interval(seeds):
    rng = np.random.default_rng(11 + seeds)
    target, times = truth(1.0), 300
    hits = 0
    for k in range(times):
        got = interval(simulate(rng, seeds=seeds), ratio, replicates=400, seed=k)
        hits += got.low <= target <= got.high
    assert 0.91 <= hits / times <= 0.985


def test_swap_test_keeps_its_level_and_has_power():
    rng = np.random.default_rng(23)
    null = real = 0
    for k in range(200):
        effect = rng.normal(0, 1, 60)[:, None]
        asked = np.full((60, 1), 6)

        def draw(shift, effect=effect):
            return rng.binomial(6, 1 / (1 + np.exp(-(0.5 + shift + effect))))

        base = tally(draw(0.0), asked)
        null += difference(tally(draw(0.0), asked), base, ratio, replicates=50, permutations=299, seed=k).p < 0.05
        real += difference(tally(draw(0.8), asked), base, ratio, replicates=50, permutations=299, seed=k).p < 0.05
    assert null / 200 < 0.09
    assert real / 200 > 0.9


# --- properties -------------------------------------------------------------------------------------

counts = st.lists(
    st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=25
).filter(lambda rows: any(any(row) for row in rows))


def confusion(rows):
    array = np.asarray(rows, dtype=float)
    return Tally(
        tuple(map(str, range(len(rows)))),
        {name: array[:, [k]] for k, name in enumerate(("tp", "fp", "fn"))},
    )


@settings(max_examples=60)
@given(counts)
def test_interval_contains_only_attainable_values_and_orders(rows):
    got = interval(confusion(rows), f1, replicates=200)
    assert 0 <= got.low <= got.high <= 1
    assert got.value == pytest.approx(estimate(confusion(rows), f1)["it"])


@settings(max_examples=40)
@given(counts, st.randoms(use_true_random=False))
def test_difference_is_antisymmetric_and_zero_against_itself(rows, random):
    a = confusion(rows)
    other = list(rows)
    random.shuffle(other)
    b = confusion(other)
    ab, ba = (difference(x, y, f1, replicates=100, permutations=99, seed=4) for x, y in ((a, b), (b, a)))
    assert ab.value == pytest.approx(-ba.value)
    assert ab.p == pytest.approx(ba.p)
    same = difference(a, a, f1, replicates=100, permutations=99)
    assert (same.value, same.low, same.high, same.p) == (0, 0, 0, 1)


@settings(max_examples=60)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_monotone_and_between_raw_and_bonferroni(ps):
    adjusted = holm(ps)
    for raw, value in zip(ps, adjusted, strict=True):
        assert raw <= value <= min(1.0, raw * len(ps)) + 1e-12
        assert value <= 1
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert [adjusted[i] for i in order] == sorted(adjusted)


@settings(max_examples=30)
@given(counts)
def test_same_seed_same_interval(rows):
    first, second = (interval(confusion(rows), f1, replicates=50) for _ in range(2))
    assert (first.low, first.high) == (second.low, second.high)


def test_pairing_repeats_greedy_and_keeps_common_images():
    greedy = tally([1, 0, 1])
    sampled = Tally(("i2", "i0"), {"right": np.eye(2), "asked": np.ones((2, 2))})
    a, b = pair(greedy, sampled)
    assert a.images == b.images == ("i0", "i2")
    assert a.seeds == b.seeds == 2
    assert a.counts["right"].tolist() == [[1, 1], [1, 1]]
    assert b.counts["right"].tolist() == [[0, 1], [1, 0]]
    with pytest.raises(InvalidInput, match="no image in common"):
        pair(greedy, Tally(("x",), {"right": np.ones((1, 1)), "asked": np.ones((1, 1))}))


def test_pairing_leaves_out_what_only_one_run_counted():
    a, b = tally([1, 0, 1]), tally([1, 1, 0])
    more = Tally(a.images, {**a.counts, "words": a.counts["asked"]})
    assert difference(more, b, ratio) == difference(a, b, ratio)


def test_shapes_are_checked():
    with pytest.raises(InvalidInput, match="shape"):
        Tally(("a",), {"right": np.ones((2, 1))})
