"""On packed weights a method is what it is on the same weights unpacked: none reads packed ones as numbers."""

from __future__ import annotations

import copy
import functools
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import packed
import seewhen
import tiny
from promises import close, generate, logits_of, some_tokens
from seewhen.backbones.plain import plain_weight
from seewhen.decoding.fast.lane import Seat
from seewhen.decoding.fast.lanes import Lanes
from seewhen.decoding.fast.slots import Choice
from seewhen.errors import UnsupportedModel

SILU = seewhen.method("memvr", after=0, before=3, threshold=0.01, activation="silu")
CLOSED = seewhen.method("cai", start_layer=0, threshold=1e9)
ACTING = {
    "cai": seewhen.method("cai", start_layer=0),
    "cai with contrast": seewhen.method("cai", start_layer=0, threshold=-1.0, contrast=2.0),
    "dola": seewhen.method("dola", layers=[0, 1, 2]),
    "memvr": seewhen.method("memvr", after=0, before=3, threshold=0.3),
    "only": seewhen.method("only"),
    "farsight": seewhen.method("farsight"),
    "sid": seewhen.method("sid"),
    "pai": seewhen.method("pai"),
    "locore": seewhen.method("locore", beta=0.5, window=3),
}


@functools.cache
def models() -> tuple[Any, Any]:
    return packed.pair("llava")


@functools.cache
def by_torch() -> Any:
    """A model quantised by torch itself: layers with neither parameters nor buffers, and no gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the age of that part of torch
        return torch.ao.quantization.quantize_dynamic(
            copy.deepcopy(tiny.model("llava")), {nn.Linear}, dtype=torch.qint8
        )


@pytest.mark.parametrize("name", ACTING)
def test_a_method_on_packed_weights_is_the_method_on_whole_ones(name: str) -> None:
    inputs, tokens = tiny.inputs("llava", rows=2), some_tokens(rows=2)
    ours, whole = (seewhen.replay(model, inputs, tokens, ACTING[name]) for model in models())
    close(ours.scores, whole.scores)
    assert torch.equal(ours.gates, whole.gates)


@pytest.mark.parametrize("made", [lambda: models()[0], by_torch], ids=["packed", "by torch"])
def test_a_closed_gate_is_stock(made: Any) -> None:
    inputs = tiny.inputs("llava", rows=2)
    stock = generate(made(), inputs)
    with pytest.warns(UserWarning, match="never fired"):
        ours = generate(made(), inputs, CLOSED)
    assert torch.equal(logits_of(ours), logits_of(stock))


@pytest.mark.parametrize("name", ACTING)
def test_layers_that_hold_no_tensor_at_all(name: str) -> None:
    replay = seewhen.replay(by_torch(), tiny.inputs("llava"), some_tokens()[0], ACTING[name])
    assert not replay.scores.isnan().any()
    assert ACTING[name].name != "cai" or replay.gates.any()


def test_no_gradient_is_said_in_a_line() -> None:
    with pytest.raises(UnsupportedModel, match="no gradient comes through"):
        generate(by_torch(), tiny.inputs("llava"), seewhen.method("saliency"), do_sample=True)


class Scaled(nn.Linear):
    """Eight-bit floats with a scale beside them, as in checkpoints of fine-grained eight-bit floats."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, 3.0 * self.weight.float())


def test_memvr_does_not_measure_what_is_no_plain_matrix() -> None:
    """The mean of packed numbers, or of weights without their adapter, would be silently another scale."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False)
    tuned = peft.get_peft_model(copy.deepcopy(tiny.model("llava")), settings)
    scaled = copy.deepcopy(tiny.model("llava"))
    for layer in scaled.model.language_model.layers:
        kept = Scaled(layer.mlp.up_proj.in_features, layer.mlp.up_proj.out_features, bias=False)
        kept.weight = nn.Parameter(layer.mlp.up_proj.weight.to(torch.float8_e4m3fn), requires_grad=False)
        layer.mlp.up_proj = kept
    for model in (models()[0], by_torch(), tuned, scaled):
        with pytest.raises(UnsupportedModel, match="weights at hand"):
            generate(model, tiny.inputs("llava"), SILU)
    merged = tuned.merge_and_unload()
    assert generate(merged, tiny.inputs("llava"), SILU).sequences.shape[0] == 1


def test_which_weights_are_plain() -> None:
    assert plain_weight(nn.Linear(2, 3)) is not None
    assert plain_weight(Scaled(2, 3)) is None
    assert plain_weight(nn.Linear(2, 3, device="meta")) is None
    assert plain_weight(seewhen.Backbone.of(models()[0]).head) is None
    assert plain_weight(seewhen.Backbone.of(models()[1]).head) is not None
    assert plain_weight(nn.Embedding(2, 3)) is None and plain_weight(None) is None


def four_bit_head() -> Any:
    """A head in four bits, as `llm_int8_skip_modules` leaves it when it does not name it."""
    bitsandbytes = pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    model = copy.deepcopy(tiny.model("llava", vocab_size=192, hidden_size=64, head_dim=16))
    plain = model.lm_head
    model.lm_head = bitsandbytes.nn.Linear4bit(64, 192, bias=False, compute_dtype=torch.float32)
    model.lm_head.weight = bitsandbytes.nn.Params4bit(plain.weight.detach(), requires_grad=False)
    return model.to("cpu").eval()


def test_a_replay_of_only_under_a_head_in_four_bits() -> None:
    """Its weight is one column of bytes, which does not say how many tokens there are."""
    replay = seewhen.replay(four_bit_head(), tiny.inputs("llava"), some_tokens()[0], "only")
    assert replay.trace.side_logits.shape == replay.trace.logits.shape
    assert not replay.trace.side_logits.isnan().any()


def test_joined_answers_under_a_head_in_four_bits() -> None:
    """The server's mask has the numbers of the states, not those of the head's bytes."""
    model, inputs = four_bit_head(), tiny.inputs("llava")
    model.set_attn_implementation("eager")
    expected = generate(model, inputs, "regular", max_new_tokens=4).sequences[0, -4:].tolist()
    lanes = Lanes(model, seewhen.Backbone.of(model), slots=2, fast="graph")
    seat, got = Seat(Choice(), 4, 0), list[int]()
    lane = lanes.join(seewhen.method("regular"), inputs, 64, [[seat]])
    while len(got) < 4:
        got += [token.id for token in list(lanes.advance(lane))]
    lane.leave(seat)
    lanes.clear()
    assert got == expected
