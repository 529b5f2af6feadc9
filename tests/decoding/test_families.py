"""The same promises on every model family: off means stock, and the model is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import seewhen
import tiny
from every_family import ALWAYS, CONTRAST, families, state_of
from promises import STEPS, close, generate, logits_of


class Broken(LogitsProcessor):
    """Raises at the third token."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 3:
            raise RuntimeError("broken on purpose")
        return scores


# -- facts -------------------------------------------------------------------------------------------------


@families
def test_backbone_reads_the_facts(family: str) -> None:
    model = tiny.model(family)
    backbone = seewhen.Backbone.of(model)
    assert backbone.num_layers == 4
    expected = (1, 3) if family in ("qwen3_5", "gemma3", tiny.CAPPED) else (0, 1, 2, 3)
    assert backbone.softmax_layers == expected
    assert backbone.image_token_ids[0] == tiny.IMAGE
    assert backbone.head.weight.shape == (tiny.VOCABULARY, 32)
    assert backbone.text_config.num_hidden_layers == 4
    inputs = tiny.inputs(family, rows=2)
    mask = backbone.image_mask(inputs["input_ids"])
    assert torch.equal(mask, inputs["input_ids"] == tiny.IMAGE)


@families
def test_lens_of_the_last_layer_is_the_models_own_logits(family: str) -> None:
    """Final norm, head (and soft cap, if any) are the right ones."""
    model = tiny.model(family)
    backbone = seewhen.Backbone.of(model)
    seen: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output)[:, -1])

    handle = backbone.layers[-1].register_forward_hook(keep)
    try:
        output = generate(model, tiny.inputs(family), max_new_tokens=2)
    finally:
        handle.remove()
    close(backbone.lens(seen[0]), output.logits[0], 1e-5)


# -- off means stock ---------------------------------------------------------------------------------------


@families
def test_a_tilt_of_strength_zero_is_stock_bit_for_bit(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    stock = generate(model, inputs)
    with seewhen.attach(model, ALWAYS.replace(strength=0.0)) as handle:
        output = generate(model, inputs)
    assert handle.trace.fired_tokens() == (STEPS, STEPS)
    assert torch.equal(logits_of(output), logits_of(stock))


@families
def test_an_open_gate_changes_the_logits(family: str) -> None:
    """So that the identities above mean something: all softmax layers but the first are tilted."""
    model, inputs = tiny.model(family), tiny.inputs(family)
    stock = generate(model, inputs, max_new_tokens=1)
    with seewhen.attach(model, ALWAYS) as handle:
        output = generate(model, inputs, max_new_tokens=1)
    assert (logits_of(output) - logits_of(stock)).abs().max() > 1e-3
    tilted = [layer for layer in seewhen.Backbone.of(model).softmax_layers if layer > 0]
    assert handle.trace.fired()[0].nonzero().flatten().tolist() == tilted


@families
def test_after_the_context_the_model_is_as_it_was(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family)
    stock, before = generate(model, inputs), state_of(model)  # transformers' own hooks come with the first call
    with seewhen.attach(model, CONTRAST, trace=True):
        generate(model, inputs)
    assert state_of(model) == before
    broken = LogitsProcessorList([Broken()])
    with pytest.raises(RuntimeError, match="on purpose"), seewhen.attach(model, CONTRAST):
        generate(model, inputs, logits_processor=broken)
    assert state_of(model) == before
    again = generate(model, inputs)
    assert torch.equal(logits_of(again), logits_of(stock))


@families
def test_after_an_error_inside_the_context_the_next_call_is_whole(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family)
    with seewhen.attach(model, CONTRAST):
        expected = generate(model, inputs)
        with pytest.raises(RuntimeError, match="on purpose"):
            generate(model, tiny.inputs(family, rows=2), logits_processor=LogitsProcessorList([Broken()]))
        again = generate(model, inputs)
    assert torch.equal(logits_of(again), logits_of(expected))
