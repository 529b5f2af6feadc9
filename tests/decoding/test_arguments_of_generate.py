"""Arguments of `generate` are read wherever a caller writes them: by place, in a configuration, on the model."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

import seewhen
import tiny
from seewhen.errors import UnsupportedMode

ALWAYS = seewhen.method("cai", preset="reference", start_layer=0, threshold=-1.0)
PLAIN: dict[str, Any] = {"max_new_tokens": 5, "eos_token_id": 10**6, "pad_token_id": 0}


@contextlib.contextmanager
def options_of(model, **options):
    """The model's own configuration of generation, with `options` for a while."""
    before = model.generation_config
    model.generation_config = GenerationConfig(**{**before.to_diff_dict(), **options})
    try:
        yield
    finally:
        model.generation_config = before


def by_place(model, inputs, **options):
    rest = {name: value for name, value in inputs.items() if name != "input_ids"}
    return model.generate(inputs["input_ids"], GenerationConfig(**PLAIN, **options), **rest)


def in_the_model(model, inputs, **options):
    with options_of(model, **options):
        return model.generate(**inputs, generation_config=GenerationConfig(**PLAIN))


ways = pytest.mark.parametrize("called", [by_place, in_the_model])


@ways
@pytest.mark.parametrize("fast", ["off", "graph"])
@pytest.mark.parametrize(
    "options",
    [
        *({"prompt_lookup_num_tokens": 2}, {"use_cache": False}, {"assistant_early_exit": 2}, {"use_mtp": True}),
        *({"dola_layers": "low"}, {"penalty_alpha": 0.6, "top_k": 4}),
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_is_nonsense_is_refused_however_it_is_asked(called, options, fast):
    model = tiny.model("llava")
    with seewhen.attach(model, ALWAYS, fast=fast), pytest.raises(UnsupportedMode, match="cai cannot run with"):
        called(model, tiny.inputs("llava"), **options)


@ways
def test_a_cache_that_saves_memory_is_kept_in_the_fast_loop_however_it_is_asked(called):
    """Ours, which holds everything on the device, would take the memory that was to be saved. Such a cache may
    need a GPU: then its error is the same as without a method."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava")

    def outcome():
        try:
            output = called(model, inputs, return_dict_in_generate=True, cache_implementation="offloaded")
        except (AssertionError, RuntimeError) as error:
            return str(error)
        return type(output.past_key_values), output.past_key_values.offloading

    expected = outcome()
    with seewhen.attach(model, ALWAYS, fast="graph"):
        assert called(model, inputs, return_dict_in_generate=True).sequences.shape[0] == 1
        assert outcome() == expected


@ways
@pytest.mark.parametrize("method", [ALWAYS, seewhen.method("opera")], ids=lambda method: method.name)
def test_beams_are_beams_however_they_are_asked(called, method):
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    with seewhen.attach(model, method) as handle:
        written = model.generate(**inputs, **PLAIN, num_beams=3)
        expected = handle.trace.tokens.tolist()
        assert torch.equal(called(model, inputs, num_beams=3), written)
        assert handle.trace.tokens.tolist() == expected


def test_the_first_argument_is_what_the_model_calls_it():
    """InstructBLIP's is the picture."""
    model, inputs = tiny.model("instructblip"), tiny.inputs("instructblip")
    with seewhen.attach(model, ALWAYS) as handle:
        expected = model.generate(**inputs, **PLAIN)
        pixels = inputs.pop("pixel_values")
        assert torch.equal(model.generate(pixels, **inputs, **PLAIN), expected)
        assert handle.trace.tokens.shape == (5, 1)


def test_a_generate_that_takes_anything_is_called_as_transformers_calls_it():
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    stock = type(model)

    class Own(stock):
        def generate(self, *args: Any, **kwargs: Any) -> Any:
            return super().generate(*args, **kwargs)

    with seewhen.attach(model, ALWAYS):
        expected = model.generate(**inputs, **PLAIN)
    model.__class__ = Own
    try:
        with seewhen.attach(model, ALWAYS):
            assert torch.equal(by_place(model, inputs), expected)
    finally:
        model.__class__ = stock


def test_an_argument_given_twice_is_the_callers_mistake_as_without_a_method():
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    with seewhen.attach(model, ALWAYS), pytest.raises(TypeError, match="multiple values"):
        model.generate(inputs["input_ids"], inputs=inputs["input_ids"])


def test_a_model_left_in_training_is_decoded_as_it_is_unless_it_drops_its_cache():
    model, inputs = copy.deepcopy(tiny.model("llava")).train(), tiny.inputs("llava")
    expected = model.generate(**inputs, **PLAIN)
    with seewhen.attach(model, ALWAYS.replace(threshold=1e9)), pytest.warns(UserWarning, match="never fired"):
        assert torch.equal(model.generate(**inputs, **PLAIN), expected)
    assert model.training
    model.gradient_checkpointing_enable()
    for fast in ("off", "graph"):
        with (
            seewhen.attach(model, ALWAYS, fast=fast),
            pytest.raises(UnsupportedMode, match="gradient checkpointing in training mode"),
        ):
            model.generate(**inputs, **PLAIN)
    with seewhen.attach(model.eval(), ALWAYS) as handle:
        model.generate(**inputs, **PLAIN)
    assert handle.trace.fired_tokens() == (5,)
