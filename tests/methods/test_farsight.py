"""FarSight: the closed form against the definition, and all decoding modes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import seewhen
import tiny
from goldens import golden, golden_model
from promises import (
    close,
    longer,
    some_tokens,
)
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.method import Method, Parts
from seewhen.decoding.sequence import Intervention
from seewhen.errors import InvalidMethod
from seewhen.methods import farsight
from seewhen.methods.farsight import (
    Decay,
    log_normalisers,
    log_register_mass,
    register_rates,
)


def causal(scores: Tensor) -> Tensor:
    n = scores.shape[-1]
    return scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)


def register_attention(scores: Tensor, rates: Tensor) -> Tensor:
    """The definition: attention maps (..., n, n) from masked scores, with registers in the masked future.

    `scores` are `-inf` where a row must not look; `rates` (..., n). Weights of a row sum to less than one:
    the rest went to its registers.
    """
    n, masked = scores.shape[-1], torch.isneginf(scores)
    distance = torch.arange(n, device=scores.device)[None] - torch.arange(n, device=scores.device)[:, None]
    with_registers = torch.where(masked & (distance > 0), -distance * rates[..., None], scores)
    return torch.softmax(with_registers, dim=-1).masked_fill(masked, 0.0)


def test_vector_of_the_specification() -> None:
    """n = 4, row 1, scores (0, 0), sigma 0.8: two weights of 0.377184, R = 0.651225."""
    weights = register_attention(causal(torch.zeros(4, 4)), torch.full((4,), 0.8))
    torch.testing.assert_close(weights[1], torch.tensor([0.377184, 0.377184, 0.0, 0.0]), atol=1e-6, rtol=0)
    mass = log_register_mass(torch.tensor(0.8), torch.tensor(2.0)).exp()
    assert mass.item() == pytest.approx(0.651225, abs=1e-6)
    assert log_register_mass(torch.tensor(0.8), None).exp().item() == pytest.approx(1 / (2.718281828**0.8 - 1))


def test_released_rates() -> None:
    index, length = torch.tensor([[0, 4]]), torch.tensor([[5]])
    rates = register_rates("released", 0.8, 4, index, length)
    expected = torch.tensor([[0.8 + 2.0 ** (-2 * (h + 1)), 0.6 + 2.0 ** (-2 * (h + 1))] for h in range(4)])
    torch.testing.assert_close(rates[0], expected)


@given(
    n=st.integers(2, 12),
    sigma=st.floats(0.05, 4.0),
    decay=st.sampled_from(["paper", "released"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60)
def test_closed_form_is_the_definition(n: int, sigma: float, decay: Decay, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = causal(3 * torch.randn(2, n, n, generator=generator))
    index = torch.arange(n)[None]
    rates = register_rates(decay, sigma, 2, index, torch.tensor([[n]]))[0]
    defined = register_attention(scores, rates)
    mass = log_register_mass(rates, n - 1 - index)
    closed = scores.softmax(-1) * torch.sigmoid(scores.logsumexp(-1) - mass)[..., None]
    torch.testing.assert_close(closed, defined, atol=2e-6, rtol=1e-4)
    assert torch.equal(defined[:, -1], scores.softmax(-1)[:, -1])  # the last row has no future


@dataclass(frozen=True)
class Definition(Intervention):
    """Whole maps with registers, in every softmax layer: slow, and independent of the closed form."""

    decay: Decay

    def edits(self, backbone: seewhen.Backbone) -> frozenset[int]:
        return frozenset(backbone.softmax_layers)

    def attend(self, step: Any, memory: Any, call: AttentionCall) -> Tensor:
        key = call.key.repeat_interleave(call.groups, dim=1)
        value = call.value.repeat_interleave(call.groups, dim=1)
        scores = call.query @ key.transpose(2, 3) * call.scaling
        mask = call.mask
        if mask is None:
            scores = causal(scores)
        else:
            scores = scores.masked_fill(~(mask if mask.dtype == torch.bool else mask >= 0), -torch.inf)
        n = scores.shape[-1]
        rates = register_rates(self.decay, 0.8, scores.shape[1], torch.arange(n)[None], torch.tensor([[n]]))
        return (register_attention(scores, rates) @ value).transpose(1, 2)


@dataclass(frozen=True)
class DefinitionMethod(Method):
    decay: Decay = "paper"

    def parts(self, backbone: seewhen.Backbone) -> Parts:
        return Parts(interventions=(Definition(self.decay),))


def uncached(model: Any, inputs: dict[str, Any], method: Method) -> Tensor:
    with seewhen.attach(model, method), torch.no_grad():
        return model(**inputs, use_cache=False).logits[:, -1]


@pytest.mark.parametrize("kernel", ["sdpa", "eager"])
@pytest.mark.parametrize("decay", ["paper", "released"])
@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "qwen3_5", "gemma3", "paligemma"])
def test_exact_form_without_cache(family: str, decay: Decay, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass without cache is exact FarSight, also where image tokens see ahead; in blocks of any size."""
    key_heads = {} if family == "paligemma" else {"num_key_value_heads": 2}
    model, inputs = tiny.model(family, **key_heads), tiny.inputs(family)
    before = seewhen.Backbone.of(model).decoder.config._attn_implementation
    seewhen.Backbone.of(model).decoder.set_attn_implementation(kernel)
    monkeypatch.setattr(farsight, "_LARGEST_BLOCK", 500)
    try:
        defined = uncached(model, inputs, DefinitionMethod(decay))
        closed = uncached(model, inputs, seewhen.method("farsight", decay=decay))
        stock = uncached(model, inputs, seewhen.method("regular"))
    finally:
        seewhen.Backbone.of(model).decoder.set_attn_implementation(before)
    close(closed, defined, 1e-4)
    # PaliGemma's prompt sees all of itself: there is no masked future to put registers in.
    assert ((closed - stock).abs().max() > 1e-2) == (family != "paligemma")


def test_log_normalisers_of_a_padded_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 4, 9, 8, generator=generator), torch.randn(2, 2, 9, 8, generator=generator)
    padding = torch.tensor([[0] * 9, [1] * 3 + [0] * 6]).bool()
    visible = torch.ones(9, 9).tril().bool()[None] & ~padding[:, None]
    full = (query @ key.repeat_interleave(2, dim=1).transpose(2, 3) * 0.3).masked_fill(
        ~visible[:, None], -torch.inf
    )
    four = torch.where(visible, 0.0, torch.finfo(torch.float32).min)[:, None]
    for mask in (visible[:, None], four, ~padding):
        call = AttentionCall(torch.nn.Identity(), 0, query, key, key, mask, 0.3, query.transpose(1, 2))
        normalisers, ahead = log_normalisers(call)
        real = ~padding[:, None].expand(-1, 4, -1)
        torch.testing.assert_close(normalisers[real], full.logsumexp(-1)[real])
        assert not ahead.any()


def test_the_default_is_the_closest_to_the_definition() -> None:
    """With a cache no form is exact after the first token; of the three the default is nearest."""
    stored, model = golden("inputs"), golden_model()
    inputs = {name: stored[name] for name in ("input_ids", "pixel_values")}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    continuation = stored["continuation"]
    exact = torch.cat(
        [uncached(model, longer(inputs, continuation[:, :t]), DefinitionMethod()) for t in range(13)]
    ).log_softmax(-1)

    def distance(method: str | Method) -> float:
        ours = seewhen.replay(model, inputs, continuation, method).logits.log_softmax(-1)
        return (exact.exp() * (exact - ours)).sum(-1).mean().item()

    default = distance("farsight")
    assert default < distance(seewhen.method("farsight", registers="infinite", rows="prompt"))
    assert default < 0.01 * distance("regular")
    assert distance("farsight:infinite") < 0.05 * distance("regular")


def test_generated_rows() -> None:
    """Infinite registers: `rows` decides whether rows of generated tokens are scaled, the prompt's always are."""
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava"), some_tokens()[0]
    prompt, all_ = (
        seewhen.replay(model, inputs, continuation, seewhen.method("farsight", registers="infinite", rows=rows))
        for rows in ("prompt", "all")
    )
    assert torch.equal(prompt.logits[0], all_.logits[0])
    assert ((prompt.logits - all_.logits)[1:].abs().amax(dim=-1) > 1e-3).all()


def test_released_patch_is_a_no_op() -> None:
    """Registers plus the causal mask: what the released patch feeds to its softmax is plain attention."""
    scores = torch.randn(6, 6, generator=torch.Generator().manual_seed(1))
    distance = torch.arange(6)[None] - torch.arange(6)[:, None]
    registers = torch.where(distance > 0, -0.8 * distance, scores)
    mask = torch.where(distance > 0, torch.finfo(torch.float32).min, 0.0)
    assert torch.equal((registers + mask).softmax(-1), causal(scores).softmax(-1))


def test_branch_rows_are_left_alone() -> None:
    """Combined with a contrast, the text-only rows have no registers: the scores are those of the parts."""
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava", rows=2), some_tokens(rows=2)
    contrast = seewhen.method("cai", start_layer=0, threshold=1e9, contrast=3.0, plausibility=None)
    with pytest.warns(UserWarning, match="never fired"):
        plain = seewhen.replay(model, inputs, continuation, contrast)
    for preset in ("paper", "infinite"):
        method = seewhen.method("farsight", preset=preset)
        with pytest.warns(UserWarning, match="never fired"):
            both = seewhen.replay(model, inputs, continuation, method + contrast)
        close(both.logits, seewhen.replay(model, inputs, continuation, method).logits, 1e-4)
        text_only = (3 * plain.logits.log_softmax(-1) - plain.scores) / 2
        close(both.scores, 3 * both.logits.log_softmax(-1) - 2 * text_only, 1e-3)


def test_errors() -> None:
    for bad in ({"sigma": 0.0}, {"sigma": float("nan")}, {"decay": "alibi"}, {"registers": "none"}, {"rows": "x"}):
        with pytest.raises(InvalidMethod):
            seewhen.method("farsight", **bad)
