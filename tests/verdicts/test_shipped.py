"""The fits that come with the package: for which models, on what, and that they are used."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import seewhen
from seewhen.asking.default_model import name_of
from seewhen.errors import InvalidInput
from seewhen.scenes import render, sample
from seewhen.verdicts.shipped import shipped_name, shipped_verdict, verdict_named
from seewhen.verdicts.verdict import ASKING_ALONE, WRITTEN, Verdict, sigmoid


def model_at(place: str) -> Any:
    return SimpleNamespace(config=SimpleNamespace(_name_or_path=place))


PLACES = {"packaged": "/anywhere/weights/emoji", "photo": "/cache/seewhen/photo-0123456789abcdef"}


@pytest.mark.parametrize("name", PLACES)
def test_the_packaged_models_have_fits(name: str) -> None:
    verdict = shipped_verdict(model_at(PLACES[name]))
    assert verdict is not None and tuple(verdict.written.weights) == WRITTEN[:-1]
    drafts = shipped_verdict(model_at(PLACES[name]), drafts=True)
    assert drafts is not None and tuple(drafts.written.weights) == WRITTEN and drafts.wants_drafts
    # What each signal must mean: asked yes and said surely speak for an object, doubt and lateness against it.
    signs = {"odds": 1, "logprob": 1, "entropy": -1, "position": -1}
    assert all(sign * verdict.written.weights[signal] > 0 for signal, sign in signs.items())
    assert verdict.asked.weights["odds"] > 0
    assert "validation" in verdict.about["material"] and verdict.about["mentions"] > 2000
    assert all("test" not in run for run in verdict.about["runs"])


@pytest.mark.parametrize("place", ["", "llava-hf/llava-1.5-7b-hf", "/else/emoji", "/else/photo-1"])
def test_other_models_are_asked_alone(place: str) -> None:
    assert shipped_verdict(model_at(place)) is None
    assert verdict_named("auto", model_at(place)) == Verdict()


def test_names_of_verdicts() -> None:
    packaged = model_at(PLACES["packaged"])
    assert verdict_named("asking", packaged).written == ASKING_ALONE
    assert verdict_named("auto", packaged) == shipped_verdict(packaged)
    with pytest.raises(InvalidInput, match=r"no file nowhere\.json.*calibrate confirm"):
        verdict_named("nowhere.json", packaged)


def test_the_fit_is_used_by_check() -> None:
    model, processor = seewhen.load("packaged", device="cpu")
    fit = shipped_verdict(model)
    assert fit is not None
    checked = seewhen.check(model, processor, render(sample("test", 3)), "a dog and a kite", lexicon="coco")
    for each in checked.mentions:
        expected = sigmoid(fit.asked.log_odds([each.odds], each.object))
        assert each.probability == pytest.approx(expected, abs=1e-4) != pytest.approx(sigmoid(each.odds), abs=1e-3)
    assert "badly" in checked.notes[0] and fit.about["asking_auroc"] < 0.8


def test_the_photo_model_is_known_in_a_cache_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEWHEN_CACHE", "/else")
    assert shipped_name("/else/photo-1") == "photo"
    assert name_of(model_at("/else/photo-1")) == "the model for photographs"
