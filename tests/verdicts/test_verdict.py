"""Verdicts: fitting, files, thresholds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from seewhen.errors import InvalidInput
from seewhen.verdicts.conformal import calibrated_verdict, keeping_threshold
from seewhen.verdicts.fitting import ENOUGH, fit_verdict
from seewhen.verdicts.verdict import Logistic, Signals, Verdict, sigmoid

Drawn = tuple[list[Signals], list[str], list[bool]]


def drawn(count: int, seed: int = 0, offsets: tuple[float, ...] = (0.0, 0.0)) -> Drawn:
    """Mentions whose truth is a logistic function: 0.5 + odds - 0.8 entropy + the word's offset."""
    rng = np.random.default_rng(seed)
    odds, entropy = rng.normal(1, 2, count), rng.exponential(1, count)
    words = rng.integers(0, len(offsets), count)
    chance = 1 / (1 + np.exp(-(0.5 + odds - 0.8 * entropy + np.asarray(offsets)[words])))
    signals = [Signals(o, -1.0, e, float(i % 60), 0.0) for i, (o, e) in enumerate(zip(odds, entropy, strict=True))]
    return signals, [f"word{w}" for w in words], (rng.random(count) < chance).tolist()


def test_without_a_fit_it_is_asking_alone() -> None:
    verdict = Verdict()
    assert verdict.probability(Signals(0.0, -2.0, 1.0, 5, 0), "dog") == 0.5
    assert (
        verdict.probability(Signals(0.0), "dog")
        >= verdict.asked_threshold
        > verdict.probability(Signals(-0.01), "dog")
    )


def test_a_fit_finds_what_was_drawn() -> None:
    verdict = fit_verdict(*drawn(20_000, offsets=(1.0, -1.0)))
    weights = verdict.written.weights
    assert weights["odds"] == pytest.approx(1, abs=0.06)
    assert weights["entropy"] == pytest.approx(-0.8, abs=0.06)
    assert weights["position"] == pytest.approx(0, abs=0.005)
    assert weights["logprob"] == weights["attempt"] == 0  # they never changed
    assert verdict.written.offsets["word0"] - verdict.written.offsets["word1"] == pytest.approx(2, abs=0.1)


def test_offsets_are_shrunk_and_need_examples() -> None:
    signals, words, there = drawn(400)
    rare = [*["rare"] * (ENOUGH - 1), *["often"] * ENOUGH, *words[2 * ENOUGH - 1 :]]
    offsets = fit_verdict(signals, rare, there).written.offsets
    assert "rare" not in offsets and "often" in offsets
    one_sided = [*[True] * ENOUGH, *there[ENOUGH:]]
    always = fit_verdict(signals, [*["always"] * ENOUGH, *words[ENOUGH:]], one_sided).written.offsets["always"]
    assert 0 < always < 2  # without a penalty it would grow without end


def test_text_by_somebody_else_is_judged_by_odds() -> None:
    verdict = fit_verdict(*drawn(2000))
    assert verdict.probability(Signals(1.5), "x") == pytest.approx(
        sigmoid(verdict.asked.intercept + 1.5 * verdict.asked.weights["odds"])
    )


def test_too_few_examples() -> None:
    with pytest.raises(InvalidInput, match="20"):
        fit_verdict([Signals(0.0)] * 30, ["a"] * 30, [True] * 30)
    with pytest.raises(InvalidInput, match="finite"):
        fit_verdict([Signals(float("nan"))] * 60, ["a"] * 60, [True, False] * 30)


def test_files_come_back_as_they_were(tmp_path: Path) -> None:
    verdict = fit_verdict(*drawn(500))
    verdict.save(tmp_path / "v.json")
    assert Verdict.load(tmp_path / "v.json") == verdict


GOOD = {"format": "seewhen verdict 1", "threshold": 0.5, "written": {"intercept": 0, "weights": {"odds": 1}}}
GOOD["asked"] = GOOD["written"]


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"threshold": 2},
        {"threshold": "high"},
        {"threshold": True},
        {"threshold": 10**400},
        {"threshold": float("nan")},
        {"written": {"intercept": -1e308, "weights": {"odds": 1e308}}},
        {"asked": {"intercept": 0, "weights": {"odds": 1, "entropy": 1}}},
        {"written": {"intercept": 0, "weights": {}}},
        {"written": {"intercept": None, "weights": {"odds": 1}}},
        {"written": {"intercept": 0, "weights": {"odds": 1}, "offsets": {"dog": [1]}}},
        {"written": []},
        {"about": 3},
    ],
)
def test_broken_files_are_refused(tmp_path: Path, change: dict) -> None:
    path = tmp_path / "v.json"
    path.write_text(json.dumps(GOOD))
    assert Verdict.load(path).written == Logistic(0, {"odds": 1})
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(InvalidInput, match="not a verdict"):
        Verdict.load(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"a": NaN}'])
def test_files_that_are_something_else(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "v.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"v\.json"):
        Verdict.load(path)
    with pytest.raises(InvalidInput, match="There is no file"):
        Verdict.load(tmp_path / "missing")


@given(st.floats(allow_nan=False))
def test_sigmoid_is_a_probability(log_odds: float) -> None:
    assert 0 <= sigmoid(log_odds) <= 1
    assert sigmoid(log_odds) + sigmoid(-log_odds) == pytest.approx(1)


@pytest.mark.parametrize(("keep", "objects"), [(0.97, 99), (0.9, 40), (0.5, 7)])
def test_the_promised_share_is_kept(keep: float, objects: int) -> None:
    rng = np.random.default_rng(1)
    kept = fresh = 0
    for _ in range(500):
        threshold = keeping_threshold(rng.normal(size=objects), keep)
        kept += int((rng.normal(size=20) >= threshold).sum())
        fresh += 20
    # Each draw keeps a Beta-distributed share, so its twenty objects are not independent: 500 count as 500.
    low, high = (
        binom.ppf([0.005, 0.995], 500, 1 - np.floor((objects + 1) * (1 - keep) + 1e-9) / (objects + 1)) / 500
    )
    assert low <= kept / fresh <= high
    assert kept / fresh >= keep - 3 * np.sqrt(keep * (1 - keep) / 500)


def test_the_whole_calibration_keeps_its_share_and_no_more_than_it_must() -> None:
    kept = []
    for seed in range(100):
        signals, words, there = drawn(500, seed)
        verdict = calibrated_verdict(signals, words, there, [i // 3 for i in range(500)], keep=0.9, seed=seed)
        new = drawn(200, 1000 + seed)
        kept += [verdict.probability(s, w) >= verdict.threshold for s, w, t in zip(*new, strict=True) if t]
    assert np.mean(kept) == pytest.approx(0.9, abs=0.02)


def test_too_few_true_objects_for_the_promise() -> None:
    assert keeping_threshold([1.0] * 32 + [0.5], 0.97) == 0.5
    with pytest.raises(InvalidInput, match="takes 33"):
        keeping_threshold([1.0] * 32, 0.97)
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        keeping_threshold([1.0], 1.0)
