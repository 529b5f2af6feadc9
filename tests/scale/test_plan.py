"""The plan for many images: its page is its result, its arithmetic is torch's, its replicas lose nothing."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from scale import plan
from scale.costs import Clock, Shape, about, llava, question
from scale.replicas import Machine
from scale.work import Scenario, simulate
from seewhen.backbones.shapes import random_inputs, random_model, shape_config


def test_the_command_it_names_starts(result):
    """As far as its imports: the rest takes minutes."""
    command = result["command"].split()
    code = (
        f"import runpy, sys; sys.modules['scale.work'] = None; runpy.run_path({command[1]!r}, run_name='__main__')"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=plan.HERE.parents[1], capture_output=True, text=True, timeout=600
    ).stderr
    assert "import of scale.work halted" in told, told


@pytest.fixture(scope="module")
def result():
    return json.loads(plan.RESULT.read_text("utf-8"))


@pytest.fixture(scope="module")
def shape():
    return llava()


def test_the_page_says_what_the_result_says(result):
    text = plan.PAGE.read_text("utf-8")
    assert plan.filled(text, plan.tables(result)) == text


def test_sentences_of_the_page_have_the_results_numbers(result):
    text = " ".join(plan.PAGE.read_text("utf-8").split())
    captions, asked = result["captions"], result["question"]
    said = (
        f"{captions['sentences']:.1f} sentences, {captions['words']:.0f} words, {captions['objects']:.1f} objects"
    )
    assert said in text
    assert f"{asked['asked_by_our_decoder_ms']:.1f} ms" in text
    assert f"The weights ({asked['weights_gb']:.0f} GB)" in text
    images = Machine().memory / 1e6 / asked["image_kept_mb"]
    assert f"about {round(images, -1):.0f} images" in text
    prompt = result["cases"]["confirm"]["prompt_tokens_per_image"]
    requests = result["cases"]["confirm"]["requests_per_image"]
    assert f"{requests:.0f} requests of about {round(prompt / requests, -1):.0f} tokens" in text
    assert plan.Prices() == plan.Prices(**result["prices"])


def test_the_result_is_what_the_script_gives(result, shape):
    clock = Clock.measured(shape)
    assert about(shape, clock) == result["question"]
    simulated = json.loads(json.dumps(simulate(plan.CASES["regular"], shape, clock)))
    assert simulated == result["cases"]["regular"]
    rate = result["cases"]["confirm"]["images_per_s_and_gpu"]
    assert plan.fleets(rate, plan.PLAIN.in_flight, plan.Prices()) == result["fleets"]["confirm"]


def test_operations_are_those_that_torch_counts():
    config = shape_config("llava-1.5-7b", tiny=True)
    model, inputs = random_model(config), random_inputs(config, text_before=5, text_after=7)
    tokens = inputs["input_ids"].shape[1]
    small = Shape.of(config)
    model.set_attn_implementation("eager")  # whose products torch counts, as if every token attended to all others
    counter = FlopCounterMode(display=False)
    with counter, torch.inference_mode():
        model(**inputs, logits_to_keep=1)
    hidden = 4 * small.width * small.layers * (tokens**2 - tokens * (tokens + 1) / 2)
    # Older releases of transformers turn positions into angles by a product of matrices, too.
    angles = 4 * tokens * config.text_config.hidden_size // config.text_config.num_attention_heads
    assert 0 <= counter.get_total_flops() - (small.tower() + small.read(tokens) + hidden) <= angles


def test_reading_in_two_parts_is_reading_once(shape):
    head = 2 * shape.width * shape.vocabulary
    assert shape.read(600) + shape.read(28, 600) - head == pytest.approx(shape.read(628))
    with_cache, without = (question(shape, Clock.measured(shape), each) for each in (True, False))
    assert with_cache["computed"] < without["computed"] / 20


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"routing": "any"},
        {"failing": 0.3},
        {"dies": 2.0, "boot": 5.0},
        {"machine": Machine(memory=20e9)},
        {"machine": Machine(caches=False, rows=3)},
    ],
)
def test_every_image_is_answered_once_whatever_happens(shape, change):
    """`simulate` counts them; here: the same seed gives the same, and what is cached was asked for."""
    scenario = dataclasses.replace(Scenario(images=60, replicas=3, in_flight=8, failing=0.0), **change)
    found = simulate(scenario, shape, Clock.measured(shape))
    assert found == simulate(scenario, shape, Clock.measured(shape))
    assert 0 <= found["cached_share"] < 1 and found["steps_per_token"] >= 1
    assert (found["failed_requests"] > 0) == (scenario.failing > 0 or scenario.dies is not None)


def test_a_lone_request_takes_what_was_measured(shape):
    """An image at a time, no failures: prompt and tokens one after the other, as the clock has them."""
    clock = Clock.measured(shape)
    found = simulate(Scenario(images=20, in_flight=1, confirm=False, failing=0.0), shape, clock)
    tokens = found["new_tokens_per_image"]
    prompt = (shape.tower() + shape.read(628)) / clock.rate
    assert 1 / found["images_per_s_and_gpu"] == pytest.approx(
        (prompt + tokens * (clock.step + clock.row)) / 1e3, rel=0.2
    )
