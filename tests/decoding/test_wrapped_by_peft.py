"""A model that peft has wrapped decodes as the same model without the wrapper, with every kind of method."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

import seewhen
import tiny

peft = pytest.importorskip("peft")
ALWAYS = seewhen.method("cai", preset="reference", start_layer=0, threshold=-1.0)
OPTIONS: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": 10**6, "pad_token_id": 0}


@pytest.fixture
def wrapped():
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    return peft.get_peft_model(copy.deepcopy(tiny.model("llava")), settings)


@pytest.mark.parametrize("method", [ALWAYS.replace(contrast=3.0), "pai", "opera"], ids=["cai", "pai", "opera"])
def test_a_wrapped_model_answers_as_its_inside(wrapped, method):
    inputs, options = tiny.inputs("llava", rows=2), {**OPTIONS, "num_beams": 2}
    with seewhen.attach(wrapped.get_base_model(), method, trace=True) as inside:
        expected = wrapped.get_base_model().generate(**inputs, **options)
    with seewhen.attach(wrapped, method, trace=True) as handle:
        assert torch.equal(wrapped.generate(**inputs, **options), expected)
    assert torch.equal(handle.trace.tokens, inside.trace.tokens)
    assert torch.equal(handle.trace.entropy, inside.trace.entropy)


def test_afterwards_the_wrapped_model_is_as_it_was(wrapped):
    inputs = tiny.inputs("llava")
    stock = wrapped.generate(**inputs, **OPTIONS)
    with seewhen.attach(wrapped, ALWAYS) as handle:
        wrapped.generate(**inputs, **OPTIONS)
    assert handle.trace.fired_tokens() == (5,)
    assert torch.equal(wrapped.generate(**inputs, **OPTIONS), stock)
    assert "generate" not in wrapped.__dict__ and "generate" not in wrapped.get_base_model().__dict__
