"""MemVR: the original code's numbers, its formula on batches, and all decoding modes."""

from __future__ import annotations

import math

import pytest
import torch

import seewhen
import tiny
from goldens import golden, golden_replay, matches
from promises import (
    close,
    some_tokens,
)
from seewhen.backbones.blocks import mlp_of
from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.methods.memvr import MemVR, top_entropy

# On four layers: judge layers 0 to 2, with a threshold that opens sometimes.
OPEN = {"after": 0, "before": 3, "threshold": 0.3, "ratio": 0.4}


def test_golden() -> None:
    stored = golden("memvr")
    run = golden_replay(seewhen.method("memvr", after=1, before=5, ratio=0.12), 7)[0]
    matches(run.logits, stored["logits"])
    injected = [next((layer for layer, on in enumerate(row) if on), -1) for row in run.gates.tolist()]
    assert injected == stored["injected_layer"].tolist()
    matches(run.trace.top_entropy[:, 0, 2:5], stored["entropy"][:, 2:5])


def test_top_entropy_is_a_share() -> None:
    logits = torch.zeros(2, 50)
    logits[1, 7] = 100.0
    torch.testing.assert_close(top_entropy(logits), torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("activation", ["none", "silu"])
def test_formula_of_the_mixed_output(activation: str) -> None:
    """The mixed feed-forward output of the prompt, by hand."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    mlp = mlp_of(seewhen.Backbone.of(model).layers[2])
    method = seewhen.method("memvr", after=0, before=2, threshold=0.0, ratio=0.4, activation=activation)
    seen = []
    with seewhen.attach(model, method), torch.no_grad():
        handle = mlp.register_forward_hook(lambda module, args, output: seen.append((args[0], output)))
        try:
            model(**inputs, use_cache=False)
        finally:
            handle.remove()
        states, mixed = seen[0]
        plain = mlp.forward(states)
        image = model.get_image_features(pixel_values=inputs["pixel_values"]).pooler_output[0]
    size = image.abs().mean()
    products = states @ (image * mlp.up_proj.weight.abs().mean() / size).T
    if activation == "silu":
        products = torch.nn.functional.silu(products)
    delta = products @ (image * mlp.down_proj.weight.abs().mean() / size)
    expected = 0.6 * plain + 0.4 * delta * (plain.abs().mean() / delta.abs().mean())
    torch.testing.assert_close(mixed, expected, atol=1e-4, rtol=1e-4)


def test_once_per_pass_and_row() -> None:
    """In the layer after the first uncertain one; layer 0 is not judged, the bounds are exclusive."""
    model, inputs, method = tiny.model("llava"), tiny.inputs("llava", rows=3), seewhen.method("memvr", **OPEN)
    run = seewhen.replay(model, inputs, some_tokens(rows=3, steps=8), method.replace(threshold=0.7))
    uncertain = run.trace.top_entropy.transpose(0, 1)[..., 1:3] > 0.7
    expected = torch.zeros_like(run.gates)
    expected[..., 2] = uncertain[..., 0]
    expected[..., 3] = uncertain[..., 1] & ~uncertain[..., 0]
    assert torch.equal(run.gates, expected)
    assert run.gates[..., 2].any() and run.gates[..., 3].any() and not run.gates.any(-1).all()


def test_branch_rows_are_left_alone() -> None:
    """With a contrast of another method: the text-only rows see no image a second time."""
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava", rows=2), some_tokens(rows=2)
    contrast = seewhen.method("cai", threshold=math.inf, contrast=3.0)
    memvr = seewhen.method("memvr", **OPEN)
    with pytest.warns(UserWarning, match="never fired"):
        plain = seewhen.replay(model, inputs, continuation, contrast)
    both = seewhen.replay(model, inputs, continuation, memvr + contrast)
    alone = seewhen.replay(model, inputs, continuation, memvr)
    close(both.logits, alone.logits, 1e-4)
    text_only = (3 * plain.logits.log_softmax(-1) - plain.scores) / 2
    expected = 3 * both.logits.log_softmax(-1) - 2 * text_only
    kept = both.scores.isfinite() & expected.isfinite()
    assert kept.sum() > len(kept)
    close(both.scores[kept], expected[kept], 1e-3)


def test_errors_and_presets() -> None:
    for bad in ({"ratio": 1.5}, {"threshold": -1}, {"activation": "relu"}, {"after": 1.5}, {"before": -1}):
        with pytest.raises(InvalidMethod):
            seewhen.method("memvr", **bad)
    with pytest.raises(InvalidMethod, match="leave no layer"):
        seewhen.method("memvr", after=3, before=4).parts(seewhen.Backbone.of(tiny.model("llava")))
    assert MemVR.presets["qwen-vl/mme"].values["activation"] == "silu"


def test_weights_without_scales_are_refused() -> None:
    class Odd(torch.nn.Module):
        pass

    from seewhen.methods.memvr import _scales

    with pytest.raises(UnsupportedModel, match="activation='none'"):
        _scales(Odd())
