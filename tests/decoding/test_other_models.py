"""Decoders that do more than plain attention and a head: scores with sinks or a cap, logits with a factor."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForImageTextToText

import seewhen
import tiny
from every_family import ALWAYS
from promises import close, generate, logits_of
from seewhen.decoding.attention_call import AttentionCall
from seewhen.methods.farsight import log_normalisers

GPT = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 8}


def sinks() -> Any:
    """A LLaVA whose text decoder is gpt-oss's: InternVL 3.5 comes with such a one."""
    model = copy.deepcopy(tiny.model("llava", model_type="gpt_oss", **GPT))
    generator = torch.Generator().manual_seed(2)
    for layer in model.get_decoder().layers:
        layer.self_attn.sinks.data = 1.0 + torch.randn(4, generator=generator)
    return model


def more_than_plain(kind: str) -> tuple[Any, dict[str, Any]]:
    if kind == "sinks":
        return sinks(), tiny.inputs("llava", rows=2)
    model = copy.deepcopy(tiny.model(tiny.CAPPED))
    model.set_attn_implementation("eager")  # older releases of transformers take SDPA, and leave the cap out
    return model, tiny.inputs(tiny.CAPPED, rows=2)


def calls_of(model: Any, inputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[AttentionCall]:
    """The attention calls of a prompt, as a tilt of strength zero sees them."""
    seen: list[AttentionCall] = []
    made = AttentionCall.__init__

    def keep(self: AttentionCall, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        seen.append(self)

    monkeypatch.setattr(AttentionCall, "__init__", keep)
    with torch.inference_mode(), seewhen.attach(model, ALWAYS.replace(strength=0.0)):
        model(**inputs)
    monkeypatch.undo()
    return seen


kinds = pytest.mark.parametrize("kind", ["sinks", "cap"])


@kinds
def test_attention_is_what_the_model_itself_says(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = more_than_plain(kind)
    calls = calls_of(model, inputs, monkeypatch)
    with torch.inference_mode():
        own = model(**inputs, output_attentions=True).attentions
    assert len(calls) > 0
    for call in calls:
        close(torch.exp(call.scores - call.log_normaliser), own[call.layer][:, :, -1], 1e-5)
        close(call.probabilities(call.scores), own[call.layer][:, :, -1], 1e-5)
        normalisers, _ = log_normalisers(call)
        close(normalisers[..., -1:], call.log_normaliser, 1e-5)


@kinds
def test_both_ways_to_tilt_agree(kind: str) -> None:
    model, inputs = more_than_plain(kind)
    with seewhen.attach(model, ALWAYS):
        corrected = generate(model, inputs)
    with seewhen.attach(model, ALWAYS.replace(kernel="bias")):
        biased = generate(model, inputs)
    assert (logits_of(corrected) - logits_of(generate(model, inputs))).abs().max() > 1e-3
    close(logits_of(corrected), logits_of(biased), 1e-4)


def test_the_lens_has_the_factor_of_the_models_own_logits() -> None:
    """Granite divides its logits. A lens that does not takes every token for certain."""
    spec = {
        "vision_config": {**tiny._CLIP, "hidden_size": 64},
        "text_config": {**tiny._TEXT, "model_type": "granite4_vision_text", "logits_scaling": 8.0},
        "image_token_index": tiny.IMAGE,
        "image_grid_pinpoints": tiny.PINPOINTS,
        "downsample_rate": "1/2",
        "deepstack_layer_map": [],
    }
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model("granite4_vision", **spec)).eval()
    backbone = seewhen.Backbone.of(model)
    assert backbone.scale == 1 / 8 and not backbone.plain_head
    ids = torch.arange(tiny.FIRST_WORD, tiny.FIRST_WORD + 9)[None]
    with torch.inference_mode():
        close(backbone.project(backbone.decoder(input_ids=ids)[0]), model(input_ids=ids).logits, 1e-6)


def test_a_decoder_of_a_class_that_scales_is_not_scaled_inside_another() -> None:
    """LLaVA puts a head of its own on the decoder, and leaves the factor of the decoder's own class out."""
    backbone = seewhen.Backbone.of(tiny.model("llava", model_type="granite", logits_scaling=8.0))
    assert backbone.scale == 1.0 and backbone.plain_head


def test_biases_of_positions_are_part_of_the_scores() -> None:
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, heads, 5, 8, generator=generator) for heads in (4, 2, 2))
    bias = torch.randn(2, 4, 5, 5, generator=generator).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf)
    whole = (each.repeat_interleave(2, dim=1) for each in (key, value))
    output = torch.nn.functional.scaled_dot_product_attention(query, *whole, attn_mask=bias, scale=0.3)
    call = AttentionCall(
        torch.nn.Identity(), 0, query, key, value, None, 0.3, output.transpose(1, 2), position_bias=bias
    )
    every = torch.arange(5).expand(2, 5)
    row = torch.einsum("rhc,rhcd->rhd", call.probabilities(call.scores), call.values_at(every))
    close(row, output[:, :, -1], 1e-5)
    assert not call.plain
