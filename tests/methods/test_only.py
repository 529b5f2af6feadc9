"""ONLY: the original code's numbers, the formula with whole maps, and all decoding modes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import seewhen
import tiny
from goldens import golden, golden_replay, matches
from promises import (
    check_batch,
    close,
    generate,
    some_tokens,
)
from seewhen.backbones.blocks import attention_of, input_norm, project_heads
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.method import Method, Parts
from seewhen.decoding.sequence import Intervention
from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.methods.only import column_entropy, head_ratios, suppress_outliers


def test_golden() -> None:
    stored = golden("only")
    run = golden_replay(seewhen.method("only", preset="pope"), 7)[0]
    matches(run.logits, stored["logits"])
    matches(run.trace.side_logits[:, 0], stored["side_logits"])
    matches(run.trace.distance[:, 0], stored["distance"])
    matches(run.trace.head_ratio[:, 0], stored["head_ratio"])
    matches(run.scores, stored["scores"])


def test_golden_with_both_arms() -> None:
    stored = golden("only_mixed")
    method = seewhen.method("only", agreement=stored["gamma"].item())
    run = golden_replay(method, 7)[0]
    assert int((run.trace.distance < method.agreement).sum()) == 4
    matches(run.scores, stored["scores"])
    # The total variation is half of it: all rows agree under the same bound.
    halved = golden_replay(method.replace(reference_parity=False), 7)[0]
    close(2 * halved.trace.distance, run.trace.distance, 1e-6)


def test_golden_of_layer_3() -> None:
    stored = golden("only_layer3")
    run = golden_replay(seewhen.method("only", layer=3), 7)[0]
    matches(run.trace.side_logits[:, 0], stored["side_logits"])
    matches(run.trace.distance[:, 0], stored["distance"])
    matches(run.trace.head_ratio[:, 0], stored["head_ratio"])


def test_outliers_of_the_specification() -> None:
    attention, among = torch.tensor([0.1, 0.1, 0.1, 0.7]), torch.ones(4, dtype=torch.bool)
    kept = suppress_outliers(attention, among)
    torch.testing.assert_close(kept, torch.tensor([0.1, 0.1, 0.1, 0.0]))
    assert column_entropy(kept, among).item() == pytest.approx(math.log(3), abs=1e-5)
    untouched = suppress_outliers(attention, torch.tensor([True, True, True, False]))
    assert torch.equal(untouched, attention)


def test_degenerate_heads_do_not_decide() -> None:
    """No image attention, or all of it on one column: ratio 0, not infinity or NaN."""
    image = torch.tensor([False, False, True, True])
    heads = torch.tensor([[0.3, 0.3, 0.2, 0.2], [0.5, 0.5, 0.0, 0.0], [0.3, 0.3, 0.4, 0.0], [0.0, 0.0, 0.4, 0.4]])
    ratios = head_ratios(heads, ~image, image)
    torch.testing.assert_close(ratios, torch.tensor([1.0, 0.0, 0.0, 0.0]), atol=1e-4, rtol=0)


def whole_map_side_logits(model: Any, inputs: dict[str, Any], layer: int, mix: str) -> Tensor:
    """The side logits as the specification writes them: all rows of the map are edited."""
    backbone = seewhen.Backbone.of(model)
    values, last_attention = [], []
    handles = [
        backbone.layers[layer].self_attn.v_proj.register_forward_hook(lambda m, a, out: values.append(out[0])),
        backbone.layers[-1].self_attn.register_forward_hook(lambda m, a, out: last_attention.append(out[0][0])),
    ]
    kernel = backbone.decoder.config._attn_implementation
    backbone.decoder.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            output = model(**inputs, output_attentions=True, output_hidden_states=True)
    finally:
        backbone.decoder.set_attn_implementation(kernel)
        for handle in handles:
            handle.remove()
    maps = output.attentions[layer][0].clone()  # (heads, n, n)
    image = inputs["input_ids"][0] == tiny.IMAGE
    text = ~image
    if mix != "instructblip":
        text[0] = False
    for columns in (text, image):
        part = maps[:, :, columns]
        limit = part.mean(-1, keepdim=True) + part.std(-1, keepdim=True)
        maps[:, :, columns] = part.masked_fill(part > limit, 0.0)

    def entropy(part: Tensor) -> Tensor:
        share = part / part.sum(-1, keepdim=True)
        return -(share * (share + 1e-6).log()).sum(-1)

    ratio = entropy(maps[:, -1, text]) / entropy(maps[:, -1, image])
    maps[ratio < ratio.mean()] = 0.0
    heads = maps.shape[0]
    value = values[0].view(len(image), -1, backbone.layers[layer].self_attn.head_dim).transpose(0, 1)
    mixed = maps @ value.repeat_interleave(heads // value.shape[0], dim=0)
    side = backbone.layers[layer].self_attn.o_proj(mixed.transpose(0, 1).reshape(len(image), -1))
    last, residual = backbone.layers[-1], output.hidden_states[-2][0]
    final = 0.5 * output.hidden_states[-1][0]
    if layer == len(backbone.layers) - 1:  # the released code's `if` comes before its `elif`
        return backbone.head(backbone.norm(side) + final)[-1].detach()
    if mix == "llava":
        u = last.input_layernorm(side) + 0.2 * residual
    elif mix == "instructblip":
        u = side + 0.2 * residual
    else:
        u = last.input_layernorm(side) + 0.2 * last_attention[0]
    u = u + last.mlp(last.post_attention_layernorm(u))
    return backbone.head(backbone.norm(u) + final)[-1].detach()


@pytest.mark.parametrize("mix", ["llava", "instructblip", "qwen-vl"])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_last_row_is_enough(mix: str, key_heads: int) -> None:
    model, inputs = tiny.model("llava", num_key_value_heads=key_heads), tiny.inputs("llava")
    for layer in (0, 2, 3):
        run = seewhen.replay(model, inputs, some_tokens()[0], seewhen.method("only", layer=layer, mix=mix))
        close(run.trace.side_logits[0, 0], whole_map_side_logits(model, inputs, layer, mix), 1e-4)


def test_mix_of_the_family() -> None:
    mixes = {"llava": "llava", "qwen2_5_vl": "qwen-vl", "instructblip": "instructblip", "internvl": "llava"}
    for family, mix in mixes.items():
        side = seewhen.method("only").parts(seewhen.Backbone.of(tiny.model(family))).interventions[0]
        assert side.mix == mix


def test_rows_without_an_image_keep_their_logits() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    text = {"input_ids": inputs["input_ids"].clone(), "attention_mask": inputs["attention_mask"]}
    text["input_ids"][text["input_ids"] == tiny.IMAGE] = tiny.FIRST_WORD
    with pytest.warns(UserWarning, match="No image"):
        ours = generate(model, text, "only")
    assert torch.equal(torch.stack(ours.logits), torch.stack(generate(model, text, "regular").logits))


def test_linear_attention_layers_are_refused() -> None:
    hybrid = tiny.model("qwen3_5")
    with pytest.raises(UnsupportedModel, match="layer 0, which is linear_attention") as caught:
        seewhen.replay(hybrid, tiny.inputs("qwen3_5"), some_tokens()[0], "only")
    assert "[1, 3]" in str(caught.value)
    check_batch("qwen3_5", seewhen.method("only", layer=1), 1e-3)


class _Compare(Intervention):
    """Projects a layer's own heads and keeps what its module makes of them."""

    def sees(self, backbone: seewhen.Backbone) -> frozenset[int]:
        return frozenset({1})

    def edits(self, backbone: seewhen.Backbone) -> frozenset[int]:
        return frozenset({1})

    def before_layer(self, step: Any, memory: Any, layer: int, hidden: Tensor) -> None:
        step.scratch_of(self)["input"] = hidden[:, -1]

    def attend(self, step: Any, memory: Any, call: AttentionCall) -> Tensor:
        layer = step.sequence.backbone.layers[1]
        normed = input_norm(layer)(step.scratch_of(self)["input"])
        self.ours = project_heads(call.module, call.output[:, -1].flatten(1), normed)
        return call.output

    def install(self, backbone: seewhen.Backbone, current: Any) -> list[Any]:
        def hook(module: Any, args: Any, output: Any) -> None:
            self.theirs = output[0][:, -1]

        return [attention_of(backbone.layers[1]).register_forward_hook(hook)]


class _CompareMethod(Method):
    name = "compare"

    def parts(self, backbone: seewhen.Backbone) -> Parts:
        return Parts(interventions=(comparison,))


comparison = _Compare()


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "qwen3_5"])
def test_projection_of_heads_includes_the_gate(family: str) -> None:
    with seewhen.attach(tiny.model(family), _CompareMethod()), torch.no_grad():
        tiny.model(family)(**tiny.inputs(family))
    close(comparison.ours, comparison.theirs, 1e-5)


def test_errors() -> None:
    for bad in ({"layer": -1}, {"contrast": -1.0}, {"mix": "blip"}, {"plausibility": 3.0}, {"collaboration": -1}):
        with pytest.raises(InvalidMethod):
            seewhen.method("only", **bad)
    with pytest.raises(InvalidMethod, match="4 layers"):
        seewhen.method("only", layer=4).parts(seewhen.Backbone.of(tiny.model("llava")))
