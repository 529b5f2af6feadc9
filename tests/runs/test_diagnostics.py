"""Diagnostics: identities on a tiny model, and attention as the model itself tells it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import seewhen
from runs.tiny_checkpoint import write
from seewhen.asking.asker import Asker, Question
from seewhen.asking.options import DESCRIBE
from seewhen.methods import method as make_method
from seewhen.runs.diagnostics import calibration_error, diagnostics
from seewhen.runs.labelled import Labelled, drawn
from seewhen.runs.probing import ATTENTION, Probe

PICTURES = 6


@pytest.fixture
def loaded(tmp_path: Any) -> tuple[Any, Any]:
    return tuple(seewhen.load(write(tmp_path), device="cpu", dtype="float32"))  # type: ignore[return-value]


def pictures() -> list[Labelled]:
    dice = random.Random(3)
    names = ("dog", "cat", "car", "apple", "bus", "clock")
    return [
        Labelled(
            str(number),
            Image.frombytes("RGB", (16, 16), dice.randbytes(768)),
            frozenset(dice.sample(names, 3)),
            {name: ((0.0, 0.0, 1.0, 1.0),) for name in names},
        )
        for number in range(PICTURES)
    ]


def test_the_probe_changes_no_token(loaded: tuple[Any, Any]) -> None:
    asker = Asker(loaded)
    questions = [Question(asker.prompt(DESCRIBE), (image.open(),)) for image in pictures()]
    options = {"max_new_tokens": 12, "do_sample": False}
    answers = []
    for method in ("regular", Probe.on()):
        with asker.attached(method, fast="off") as attached:
            answers.append(
                [answer.tokens for batch in attached.answer(questions, options) for answer in batch.answers]
            )
    assert answers[0] == answers[1] and len({*answers[0]}) > 1


def test_attention_on_the_image_is_the_models_own(loaded: tuple[Any, Any]) -> None:
    model, _ = loaded
    asker = Asker(loaded)
    questions = [Question(asker.prompt(DESCRIBE), (image.open(),)) for image in pictures()[:2]]
    with asker.attached(Probe.on(), fast="off") as attached:
        (batch,) = attached.answer(questions, {"max_new_tokens": 5, "do_sample": False, "eos_token_id": 10**6})
    assert batch.trace is not None
    inputs = asker.inputs(questions)
    said = torch.tensor([answer.tokens for answer in batch.answers])[:, :4]
    whole = torch.cat([inputs["input_ids"], said], dim=1)
    mask = torch.ones_like(whole)
    mask[:, : inputs["input_ids"].shape[1]] = inputs["attention_mask"]
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        out = model(
            input_ids=whole, attention_mask=mask, pixel_values=inputs["pixel_values"], output_attentions=True
        )
    length = inputs["input_ids"].shape[1]
    for row in range(2):
        columns = asker.backbone.image_mask(whole)[row]
        for layer, attention in enumerate(out.attentions):
            own = attention[row, :, length - 1 :, columns].mean(dim=0)  # (steps, image tokens)
            torch.testing.assert_close(batch.trace.tensors[ATTENTION][:5, row, layer], own, atol=1e-5, rtol=1e-4)


def test_a_model_that_reads_no_other_token_is_the_same_without_the_image(loaded: tuple[Any, Any]) -> None:
    model, processor = loaded
    with torch.no_grad():
        for layer in model.get_decoder().layers:
            layer.self_attn.o_proj.weight.zero_()
    found = diagnostics(model, processor, pictures(), tokens=12)
    assert found.divergence == pytest.approx(0, abs=1e-6)
    assert found.tokens_changed == found.answers_changed == 0
    assert found.perplexity_without == pytest.approx(found.perplexity_with, rel=1e-5)
    assert found.entropy_without == pytest.approx(found.entropy_with, rel=1e-5)
    assert found.asked_auroc == pytest.approx(0.5, abs=0.3)  # it has not seen the picture


def test_attention_that_compares_nothing_is_even_and_a_score_tilt_does_nothing_to_it(
    loaded: tuple[Any, Any],
) -> None:
    model, processor = loaded
    with torch.no_grad():
        for layer in model.get_decoder().layers:
            layer.self_attn.q_proj.weight.zero_()  # all scores are zero, and so is |A| w
    found = diagnostics(model, processor, pictures(), tokens=12)
    shape = found.tilt
    assert shape.patches == 16 and shape.layers and shape.method == "cai"
    for layer in range(len(shape.layers)):
        assert shape.effective_before[layer] == pytest.approx(16, rel=1e-4)
        assert shape.effective_after[layer] == pytest.approx(16, rel=1e-4)
        assert shape.mass_before[layer] == pytest.approx(shape.mass_after[layer], rel=1e-5)
        assert shape.to_regular[layer] == pytest.approx(0, abs=1e-6)
        assert shape.negative_scores[layer] == 0


def test_zero_strength_leaves_everything_and_a_uniform_tilt_is_uniform(loaded: tuple[Any, Any]) -> None:
    asker = Asker(loaded)
    questions = [Question(asker.prompt(DESCRIBE), (image.open(),)) for image in pictures()[:2]]
    found = {}
    for name in ("cai:strength=0", "cai:relevance=uniform,floor=none", "cai"):
        with asker.attached(Probe.on(make_method(name)), fast="off") as attached:
            (batch,) = attached.answer(questions, {"max_new_tokens": 6, "do_sample": False})
        assert batch.trace is not None
        layer = batch.trace.tilted_layers[-1]
        found[name] = {
            k: v[: min(batch.trace.lengths), :, layer] for k, v in batch.trace.tensors.items() if v.dim() == 3
        }
    zero, even, cai = found.values()
    torch.testing.assert_close(zero["effective_after"], zero["effective_before"])
    torch.testing.assert_close(zero["mass_after"], zero["mass_before"])
    assert zero["to_regular"].max() == zero["to_uniform"].max() == 0
    assert even["to_uniform"].max() == 0 < even["to_regular"].min()
    assert cai["to_regular"].min() > 0 and cai["mass_after"].mean() > cai["mass_before"].mean()


def test_everything_is_told_of_labelled_pictures_and_the_rest_of_others(loaded: tuple[Any, Any]) -> None:
    found = diagnostics(*loaded, pictures(), tokens=24)
    whole = json.loads(json.dumps(found.to_json()))
    assert whole["pictures"] == PICTURES and whole["tokens"] <= PICTURES * 24
    assert all(0 < share < 1 for share in whole["image_attention"]) and len(whole["image_attention"]) == 4
    assert 0 < whole["divergence"] < 0.6932 and 0 < whole["tokens_changed"] <= whole["answers_changed"] <= 1
    assert whole["pointing"] == [1.0] * 4 and whole["pointing_chance"] == 1.0  # boxes as large as the picture
    assert 0 <= whole["invented"] <= 1 and 0 <= whole["asked_accuracy"] <= 1
    bare = diagnostics(*loaded, pictures(), labels=False, tokens=24)
    assert bare.invented is bare.pointing is bare.calibration_error is bare.asked_auroc is None
    assert bare.divergence == pytest.approx(found.divergence, abs=1e-6)


def test_batches_do_not_matter(
    loaded: tuple[Any, Any],
) -> None:
    together = diagnostics(*loaded, pictures(), labels=False, tokens=16, batch=PICTURES)
    alone = diagnostics(*loaded, pictures(), labels=False, tokens=16, batch=1)
    assert together.divergence == pytest.approx(alone.divergence, abs=1e-4)
    assert together.image_attention == pytest.approx(alone.image_attention, abs=1e-4)


def test_drawn_scenes_know_where_their_objects_are() -> None:
    for scene in drawn(3):
        assert set(scene.boxes) == set(scene.objects)
        assert all(
            0 <= left < right <= 1 and 0 <= top < bottom <= 1
            for boxes in scene.boxes.values()
            for left, top, right, bottom in boxes
        )


def test_calibration_error_is_zero_for_honest_odds_and_large_for_boasting() -> None:
    true = np.array([True] * 7 + [False] * 3)
    assert calibration_error(np.full(10, 0.7), true) == pytest.approx(0)
    assert calibration_error(np.ones(10), true) == pytest.approx(0.3)
    mixed = calibration_error(np.array([0.95] * 10 + [0.05] * 10), np.array([True] * 20))
    assert mixed == pytest.approx(0.5 * 0.05 + 0.5 * 0.95)
