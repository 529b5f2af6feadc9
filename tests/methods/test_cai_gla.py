"""CAI on the gates of linear layers: the formula, its direction, and what every method promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import seewhen
import tiny
from promises import (
    close,
    generate,
    logits_of,
)
from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.methods.cai_gla import CAIGLA, gated_linear_layers

HYBRID = "qwen3_5"
OPEN = CAIGLA(start_layer=0, threshold=-1.0)
CONTRAST = OPEN.replace(contrast=3.0)
LAYER = 2  # the linear layers of the tiny model are 0 and 2; layer 0 has nothing before it to gate it


def gates_of(method: CAIGLA | None, rows: int = 2) -> dict[str, list[Tensor]]:
    """Pre-activations of the two gates of the edited layer at each step, as the layer goes on with them."""
    model, inputs = tiny.model(HYBRID), tiny.inputs(HYBRID, rows=rows)
    linear = seewhen.Backbone.of(model).layers[LAYER].linear_attn
    seen: dict[str, list[Tensor]] = {"in_proj_a": [], "in_proj_b": []}

    def watch(name: str) -> Any:
        return getattr(linear, name).register_forward_hook(
            lambda m, args, output: seen[name].append(output.clone())
        )

    if method is None:
        handles = [watch(name) for name in seen]
        generate(model, inputs, max_new_tokens=2)
    else:
        with seewhen.attach(model, method, trace=True) as handle:
            handles = [watch(name) for name in seen]  # after the method's own hooks
            generate(model, inputs, max_new_tokens=2)
            weights, image = handle.trace.relevance, handle.trace.image_tokens
        counts = torch.tensor(image)
        seen["relevance"] = [torch.nan_to_num(step).sum(dim=1) / counts for step in weights]
    for handle_ in handles:
        handle_.remove()
    return seen


def test_the_formula_on_the_last_position_of_the_prefill() -> None:
    stock, edited = gates_of(None), gates_of(OPEN.replace(strength=0.7))
    bias = seewhen.Backbone.of(tiny.model(HYBRID)).layers[LAYER].linear_attn.dt_bias.detach()
    relevance = edited["relevance"][0][:, None]
    assert ((relevance > 0) & (relevance < 1)).all()
    for name, offset in (("in_proj_a", bias), ("in_proj_b", torch.zeros_like(bias))):
        before, after = stock[name][0], edited[name][0]
        assert torch.equal(after[:, :-1], before[:, :-1])
        last = before[:, -1]
        close(after[:, -1], last - 0.7 * relevance * (last + offset).abs(), 1e-6)


def test_the_state_forgets_less_and_is_overwritten_less() -> None:
    stock, edited = gates_of(None), gates_of(OPEN)
    for name, before in stock.items():
        assert (edited[name][0][:, -1] < before[0][:, -1]).all(), name


def test_decoding_steps_are_edited_too() -> None:
    closed = gates_of(OPEN.replace(strength=1e-9))
    edited = gates_of(OPEN)
    assert len(edited["in_proj_a"]) == len(closed["in_proj_a"]) == 2
    assert not torch.equal(edited["in_proj_a"][1], closed["in_proj_a"][1])


def test_the_text_only_row_is_not_edited() -> None:
    """With no plausibility cut the contrast is linear, so the other row can be read off the scores."""
    model, inputs = tiny.model(HYBRID), tiny.inputs(HYBRID)
    tokens = torch.tensor([5, 9, 33, 71])
    others = []
    for strength in (0.0, 1.0):
        replay = seewhen.replay(model, inputs, tokens, CONTRAST.replace(plausibility=None, strength=strength))
        main = torch.log_softmax(replay.logits, dim=-1)
        others.append((3.0 * main - replay.scores) / 2.0)
    close(others[0], others[1])


def test_together_with_the_softmax_tilt() -> None:
    model, inputs = tiny.model(HYBRID), tiny.inputs(HYBRID)
    softmax = seewhen.method("cai", start_layer=0, threshold=-1.0)
    outputs = []
    for method in (softmax, OPEN, softmax + OPEN):
        with seewhen.attach(model, method) as handle:
            outputs.append(logits_of(generate(model, inputs)))
            fired = handle.trace.fired()[0].nonzero().flatten().tolist()
    assert fired == [1, LAYER, 3] and not torch.equal(outputs[2], outputs[0])
    assert not torch.equal(outputs[2], outputs[1])


def test_layers() -> None:
    backbone = seewhen.Backbone.of(tiny.model(HYBRID, num_hidden_layers=16))
    assert gated_linear_layers(backbone) == tuple(range(0, 16, 2))
    assert CAIGLA().gated_layers(backbone) == (14,)  # above floor(0.85 * 16) = 13
    assert CAIGLA(start_layer=0.99).gated_layers(backbone) == (14,)  # the deepest stays
    with pytest.raises(InvalidMethod, match="leaves no linear layer"):
        CAIGLA(start_layer=14).gated_layers(backbone)


def test_models_without_linear_layers_are_refused() -> None:
    model = tiny.model("llava")
    refused = pytest.raises(UnsupportedModel, match=r"LlavaForConditionalGeneration has none\. Use cai")
    with refused, seewhen.attach(model, "cai-gla"):
        pass


def test_parameters() -> None:
    method = seewhen.method("cai-gla", strength=0.5)
    assert method.fingerprint != seewhen.method("cai-gla").fingerprint
    with pytest.raises(InvalidMethod, match=r"cai-gla: strength=-1"):
        seewhen.method("cai-gla", strength=-1.0)
