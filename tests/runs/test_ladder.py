"""Predictions beside the ladder: on rungs whose rule is known, and on rungs without any."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from seewhen.runs.diagnostics import Diagnostics, TiltShape
from seewhen.runs.diagnostics_wording import foretold, told
from seewhen.runs.ladder import LEAST, Rung, ladder, predictions, rungs_of, scalars

ROOT = Path(__file__).parents[2]
RUNGS = 14


def made(rule: Any, noise: float = 0.0, seed: int = 0) -> list[Rung]:
    """Rungs whose sampled effect of `contrast` follows a rule of their divergence."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(RUNGS):
        facts = {
            "divergence": float(rng.uniform(0.05, 0.5)),
            "usual_without": float(rng.uniform(-4, -1)),
            "recoverable_sampled": float(rng.uniform(0, 12)),
            "asked_auroc": float(rng.uniform(0.6, 0.95)),
            "tokens_changed": float(rng.uniform(0.1, 0.6)),
        }
        effect = rule(facts) + noise * float(rng.normal())
        effects = {"contrast": {"sampled": {"chair_i": [effect, effect - 1, effect + 1]}}}
        found.append(Rung(f"rung{number}", facts, effects))
    return found


def model(**changed: float) -> dict[str, float]:
    own = {"divergence": 0.2, "usual_without": -2.0, "recoverable_sampled": 5.0, "asked_auroc": 0.8}
    return {**own, "tokens_changed": 0.12, **changed}


def test_a_rule_is_found_and_told_with_its_error() -> None:
    rungs = made(lambda d: 20 * d["divergence"] - 10)
    (one,) = predictions(model(), rungs)
    assert one.by == ("divergence", "usual_without", "recoverable_sampled", "asked_auroc") and not one.outside
    assert one.value == pytest.approx(20 * 0.2 - 10, abs=1.0) and one.low < -6 < one.high < 0
    assert one.error < 0.35 * one.error_of_mean and one.rungs == RUNGS
    short, row = [line for line in foretold([one], rungs, model()) if "contrast" in line]
    points = f"{one.value:+.1f} ({one.low:+.1f} to {one.high:+.1f})"
    assert short.strip() == f"The contrast, sampled: likely to help; predicted CHAIR_i {points}."
    assert f"{points}*" in row and "likely to help" in row
    assert "Answers hardly change without the image: 12 %" in "\n".join(foretold([one], rungs, model()))


def test_what_was_measured_on_the_model_itself_stands_beside() -> None:
    rungs = made(lambda d: 20 * d["divergence"] - 10)
    (one,) = predictions(model(), rungs)
    own = Rung("packaged", {}, {"contrast": {"sampled": {"chair_i": [3.4, 1.2, 5.6]}}})
    (row,) = [line for line in foretold([one], rungs, model(), own) if line.startswith("    contrast")]
    assert "+3.4 (+1.2 to +5.6)" in row


def test_fewer_inventions_are_told_with_what_they_cost() -> None:
    rungs = [
        Rung(rung.name, rung.diagnostics, {name: {"sampled": {"chair_i": [less] * 3, "f1": [more] * 3}}})
        for rung in made(lambda d: 0.0)
        for name, less, more in (("shorter", -6.0, -2.5), ("better", -4.0, 3.0))
    ]
    found = [*predictions(model(), rungs), *predictions(model(), rungs, "f1")]
    assert {(one.method, one.metric) for one in found} == {
        (m, k) for m in ("shorter", "better") for k in ("chair_i", "f1")
    }
    shorter, better = [line for line in foretold(found, rungs, model()) if "F1 " in line]
    assert "shorter" in shorter and "F1 -2.5" in shorter and "better" in better and "F1 +3.0" in better


def test_without_a_rule_the_mean_of_the_rungs_is_told() -> None:
    means = 0
    for seed in range(20):
        rungs = made(lambda d: -1.0, noise=3.0, seed=seed)
        effects = [rung.effects["contrast"]["sampled"]["chair_i"][0] for rung in rungs]
        (one,) = predictions(model(), rungs)
        # Each rung from the mean of the others, by hand.
        by_hand = [(value - (sum(effects) - value) / (RUNGS - 1)) ** 2 for value in effects]
        assert one.error_of_mean == pytest.approx(math.sqrt(sum(by_hand) / RUNGS))
        assert (one.by == ()) == (one.error >= one.error_of_mean)
        if not one.by:
            means += 1
            assert one.value == pytest.approx(float(np.mean(effects)))
            assert f"({one.low:+.1f} to {one.high:+.1f})*" not in "\n".join(foretold([one], rungs, model()))
    assert means > 12


def test_the_interval_covers_rungs_that_were_left_out() -> None:
    covered = total = 0
    for seed in range(12):
        rungs = made(lambda d: 20 * d["divergence"] - 10, noise=1.5, seed=seed)
        for number, rung in enumerate(rungs):
            (one,) = predictions(rung.diagnostics, [*rungs[:number], *rungs[number + 1 :]])
            covered += one.low <= rung.effects["contrast"]["sampled"]["chair_i"][0] <= one.high
            total += 1
    assert 0.88 < covered / total <= 1


def test_beyond_the_rungs_it_says_so_and_is_less_sure() -> None:
    rungs = made(lambda d: 20 * d["divergence"] - 10, noise=1.0)
    (inside,) = predictions(model(), rungs)
    (beyond,) = predictions(model(divergence=0.69), rungs)
    (outside,) = beyond.outside
    assert outside.name == "divergence" and outside.value == 0.69 > outside.high
    assert beyond.high - beyond.low > inside.high - inside.low
    text = "\n".join(foretold([beyond], rungs, model(divergence=0.69)))
    assert "Beyond the rungs" in text and "0.69" in text and "likely to" not in text
    assert "Beyond the rungs" not in "\n".join(foretold([inside], rungs, model()))


def test_the_mean_of_the_rungs_is_no_promise_to_a_model_beyond_them() -> None:
    rungs = made(lambda d: -6.0, noise=0.1, seed=3)
    (one,) = predictions(model(asked_auroc=0.99), rungs)
    assert one.high < 0 and [each.name for each in one.outside] == ["asked_auroc"]
    text = "\n".join(foretold([one], rungs, model(asked_auroc=0.99)))
    assert "helps the rungs; this model is outside their range" in text and "likely to help" not in text


def test_a_method_that_few_rungs_know_does_not_speak_for_the_others() -> None:
    """Rungs reach from 0.05 to 0.5; drafts were measured on those below 0.3 alone, and the model is at 0.4."""
    rungs = made(lambda d: -6.0, noise=0.1, seed=1)
    drafts = {"confirm 4 drafts": rungs[0].effects["contrast"]}
    few = [each for each in rungs if each.diagnostics["divergence"] < 0.3]
    rungs = [Rung(r.name, r.diagnostics, {**r.effects, **drafts}) if r in few else r for r in rungs]
    found = predictions(model(divergence=0.4), rungs)
    text = "\n".join(foretold(found, rungs, model(divergence=0.4)))
    assert LEAST <= len(few) < len(rungs)
    assert f"Beyond the {len(few)} rungs measured with confirm 4 drafts: how far" in text
    assert "Beyond the rungs" not in text and "The contrast, sampled: likely to help" in text
    assert "Besides, sampled, helps the rungs; this model is outside their range: confirm 4 drafts." in text


def test_what_helps_one_way_is_not_said_of_the_other() -> None:
    rungs = [
        Rung(
            rung.name,
            rung.diagnostics,
            {name: {way: {"chair_i": [-5.0] * 3}} for name, way in (("cut", "sampled"), ("asks", "greedy"))},
        )
        for rung in made(lambda d: 0.0)
    ]
    text = "\n".join(foretold(predictions(model(), rungs), rungs, model()))
    assert "Besides, sampled, likely to help: cut." in text and "Besides, greedy, likely to help: asks." in text


def test_what_is_beyond_the_rungs_does_not_look_as_if_it_were_among_them() -> None:
    rungs = made(lambda d: 20 * d["divergence"] - 10, noise=1.0)
    highest = max(rung.diagnostics["divergence"] for rung in rungs)
    beyond = model(divergence=highest + 0.002)
    text = "\n".join(foretold(predictions(beyond, rungs), rungs, beyond))
    (told_of,) = re.findall(r"depend on the image is (\S+), theirs \S+ to (\S+):", text)
    assert float(told_of[0]) > float(told_of[1])


def test_photographs_know_less_and_are_predicted_by_that() -> None:
    rungs = made(lambda d: 20 * d["divergence"] - 10)
    unlabelled = {name: value for name, value in model().items() if name in ("divergence", "usual_without")}
    (one,) = predictions({**unlabelled, "tokens_changed": 0.12}, rungs)
    assert one.by == ("divergence", "usual_without")


def test_too_few_rungs_and_none_at_all() -> None:
    rungs = made(lambda d: 0.0)[:5]
    assert predictions(model(), rungs) == []
    assert "too few rungs" in "\n".join(foretold([], rungs, model()))
    assert "does not come with this package" in "\n".join(foretold([], (), model()))


def test_what_comes_along_is_read_or_missing() -> None:
    assert len(ladder()) >= LEAST
    for rung in ladder():
        assert rung.name and {"recoverable_greedy", "recoverable_sampled", "asked_auroc"} <= set(rung.diagnostics)
    content = {"rungs": [{"name": "a", "diagnostics": {"divergence": 1.0}, "effects": {}, "regular": {}}]}
    assert rungs_of(content) == (Rung("a", {"divergence": 1.0}, {}),)


def test_the_page_quotes_what_the_packaged_ladder_says_of_the_packaged_model() -> None:
    every = {rung.name: rung for rung in ladder()}
    own = every.pop("packaged")
    rungs = list(every.values())
    text = "\n".join(foretold(predictions(own.diagnostics, rungs), rungs, own.diagnostics, own))
    quoted = [
        found
        for found in re.findall(r"`([^`]*)`", (ROOT / "docs" / "confirm.md").read_text("utf-8"))
        if found.startswith(("Answers change without", "The contrast, sampled"))
    ]
    assert len(quoted) == 2 and all(found in text for found in quoted)


def looked(**changed: Any) -> Diagnostics:
    spread = {"effective_before": (60.0, 70.0), "effective_after": (52.0, 120.0)}
    mass = {"mass_before": (0.03, 0.1), "mass_after": (0.4, 0.5)}
    apart = {"to_regular": (0.4, 0.47), "to_uniform": (0.05, 0.11)}
    shape = TiltShape("cai", (10, 11), 144.0, (0.9, 0.98), **spread, **mass, **apart)
    own: dict[str, Any] = {
        "pictures": 8,
        "tokens": 300,
        "image_attention": (0.4, None, 0.6),
        "divergence": 0.136,
        "divergence_at_objects": 0.5,
        "tokens_changed": 0.34,
        "answers_changed": 1.0,
        "entropy_with": 0.4,
        "entropy_without": 0.6,
        "perplexity_with": 1.3,
        "perplexity_without": math.e,
        "tilt": shape,
    }
    return Diagnostics(**{**own, **changed})


def test_scalars_are_what_rungs_have() -> None:
    found = scalars(looked(pointing=(0.2, None, 0.7), pointing_chance=0.1))
    assert found["usual_without"] == pytest.approx(-1) and found["pointing"] == 0.7
    assert found["image_attention"] == pytest.approx(0.5) and found["image_attention_deep"] == 0.6
    assert found["tilt_to_uniform"] == pytest.approx(0.08) and found["effective_patches"] == pytest.approx(
        65 / 144
    )
    assert "recoverable_greedy" not in found and "asked_auroc" not in found
    assert all(isinstance(value, float) for value in found.values())


def test_words_of_a_smear_and_of_a_tilt_that_knows_where() -> None:
    text = "\n".join(told(looked()))
    assert "40 - 60 %" in text and "90 to 98 %" in text and "60 to 70 before, 52 to 120 after, of 144" in text
    assert "much nearer to a uniform tilt" in text and "AUROC" not in text and "points at" not in text
    sharp = TiltShape("cai", (11,), 144.0, (0.5,), (60.0,), (9.0,), (0.3,), (0.5,), (0.3,), (0.28,))
    text = "\n".join(told(looked(tilt=sharp, entropy_auroc=0.75)))
    assert "uniform tilt than" not in text and "0.750" in text and "in layer 11:" in text


def test_rungs_without_diagnostics_give_their_mean() -> None:
    rungs = [Rung(rung.name, {}, rung.effects) for rung in made(lambda d: 20 * d["divergence"] - 10)]
    (one,) = predictions(model(), rungs)
    effects = [rung.effects["contrast"]["sampled"]["chair_i"][0] for rung in rungs]
    assert one.by == () and one.value == pytest.approx(float(np.mean(effects))) and one.error == one.error_of_mean
    assert "% of the tokens" not in "\n".join(foretold([one], rungs, model()))


def test_a_rung_that_was_not_looked_at_does_not_take_the_predictor_away() -> None:
    rungs = made(lambda d: 20 * d["divergence"] - 10)
    blind = [
        Rung(f"blind{n}", {"asked_auroc": 0.7, "recoverable_sampled": 4.0}, rungs[0].effects) for n in range(3)
    ]
    assert predictions(model(), [*rungs, *blind]) == predictions(model(), rungs)
    few = [*rungs[: LEAST - 1], *blind]
    (one,) = predictions(model(), few)
    assert one.rungs == len(few) and set(one.by) <= {"recoverable_sampled", "asked_auroc"}
