"""LVLMs-Saliency: gradients against brute force, SGRS as sampling, LocoRE against its definition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

import seewhen
import tiny
from promises import (
    FAMILIES,
    NEVER_A_TOKEN,
    close,
    generate,
    longer,
    some_tokens,
)
from seewhen.decoding.aside import Aside
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.method import Method, Parts
from seewhen.decoding.prefill import Prefill
from seewhen.decoding.sequence import Intervention
from seewhen.errors import InvalidInput, InvalidMethod, UnsupportedMode
from seewhen.methods.saliency import draw_order
from seewhen.methods.saliency_probe import SaliencyProbe

SAMPLED = {"do_sample": True, "max_new_tokens": 8}
ALONE = {"beta": 0.0}  # SGRS without LocoRE


def prefill_of(model: Any, inputs: dict[str, Any]) -> Prefill:
    """The prompt as SGRS keeps it."""
    with seewhen.attach(model, seewhen.method("saliency", **ALONE)) as handle, torch.no_grad():
        model(**inputs)
        sequence = handle.session.last
    assert sequence is not None
    assert sequence.prefill is not None
    return sequence.prefill


def probe_of(family: str, inputs: dict[str, Any], history: Tensor, layers: tuple[int, ...]) -> SaliencyProbe:
    model = tiny.model(family)
    prefill = prefill_of(model, inputs)
    with seewhen.attach(model, seewhen.method("saliency", **ALONE, first_layer=layers[0], last_layer=layers[-1])):
        return SaliencyProbe(seewhen.Backbone.of(model), prefill, history, layers)


def stepped_probe(family: str, inputs: dict[str, Any], history: Tensor, layers: tuple[int, ...]) -> SaliencyProbe:
    """The same, as it is decoded: every token of `history` after the cache of those before it."""
    model = tiny.model(family)
    backbone, method = seewhen.Backbone.of(model), seewhen.method("saliency", **ALONE)
    with seewhen.attach(model, method.replace(first_layer=layers[0], last_layer=layers[-1])) as handle:
        with torch.no_grad():
            aside = Aside(handle.session, model(**inputs).past_key_values)
            prefill, cache = aside.prefill, aside.copied(aside.prefill.embeds.shape[1] - 1)
        for step in range(history.shape[1]):
            SaliencyProbe(backbone, prefill, history[:, :step], layers, cache)
        return SaliencyProbe(backbone, prefill, history, layers, cache)


def brute_force(family: str, inputs: dict[str, Any], tokens: Tensor, layers: tuple[int, ...]) -> list[Tensor]:
    """|P * dLoss/dP|, mean over heads, whole maps: prompt, history and candidate in one eager pass."""
    model = tiny.model(family)
    decoder = seewhen.Backbone.of(model).decoder
    kernel = decoder.config._attn_implementation
    decoder.set_attn_implementation("eager")
    try:
        output = model(**longer(inputs, tokens), output_attentions=True, use_cache=False)
    finally:
        decoder.set_attn_implementation(kernel)
    maps = [output.attentions[layer] for layer in layers]
    loss = -output.logits[0, -2].log_softmax(-1)[tokens[0, -1]]
    gradients = torch.autograd.grad(loss, maps)
    return [(p * g).abs().mean(dim=1)[0].detach() for p, g in zip(maps, gradients, strict=True)]


@pytest.mark.parametrize("family", [*FAMILIES, "mistral3"])
def test_gradient_row_is_brute_force_and_not_zero(family: str) -> None:
    """Our one-row probe equals the whole backward pass on the row that predicts the candidate.

    The candidate's own row, which the released code reads, has no gradient at all.
    """
    inputs, tokens, layers = tiny.inputs(family), some_tokens(steps=4), (0, 1, 2)
    probe = stepped_probe(family, inputs, tokens[:, :-1], layers)
    ours = probe.saliency(tokens[:, -1])[:, 0]
    whole = probe_of(family, inputs, tokens[:, :-1], layers).saliency(tokens[:, -1])[:, 0]
    torch.testing.assert_close(ours, whole, atol=1e-6, rtol=1e-3)
    maps = brute_force(family, inputs, tokens, layers)
    for row, theirs in zip(ours, maps, strict=True):
        torch.testing.assert_close(row, theirs[-2, :-1], atol=1e-6, rtol=1e-3)
        assert row.max() > 1e-4
        assert not theirs[-1].any()
    # The score: rows of unit length, mean over the columns after the image, mean over layers.
    after = inputs["input_ids"].shape[1] - 1 - inputs["input_ids"][0].eq(tiny.IMAGE).nonzero().max()
    units = torch.stack([m[-2, :-1] / m[-2, :-1].norm() for m in maps])
    expected = units[:, -(int(after) + 3) :].mean()
    torch.testing.assert_close(probe.score(tokens[:, -1])[0], expected, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_5"])
def test_batch_of_probes_equals_singles(family: str) -> None:
    history, layers = some_tokens(rows=2, steps=3), (1,)
    together = stepped_probe(family, tiny.inputs(family, rows=2), history[:, :-1], layers).score(history[:, -1])
    for row in range(2):
        single = tiny.inputs(family, rows=2, only=row)
        alone = probe_of(family, single, history[row : row + 1, :-1], layers).score(history[row, -1:])
        torch.testing.assert_close(together[row], alone[0], atol=1e-5, rtol=1e-3)


def sample(method: Method | str, rows: int = 2, family: str = "llava", seed: int = 5, **options: Any) -> Tensor:
    torch.manual_seed(seed)
    inputs = tiny.inputs(family, rows=rows)
    output = generate(tiny.model(family), inputs, method, **{**SAMPLED, **options})
    return output.sequences[:, inputs["input_ids"].shape[1] :]


def streams(*seeds: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in seeds]


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "gemma3"])
def test_rows_with_generators_of_their_own_are_independent(family: str) -> None:
    """A row draws, rejects and goes on as it would alone, and as it would from the common generator."""
    model, batch = tiny.model(family), tiny.inputs(family, rows=2)
    method, options = seewhen.method("saliency", alpha=1.05, history=2), {"top_k": 0, **SAMPLED}
    with seewhen.attach(model, method) as handle:
        output = model.generate(**batch, **options, generators=streams(7, 8))
        draws = handle.trace.draws
        together = output[:, batch["input_ids"].shape[1] :]
        assert (draws > 1).any() and not torch.equal(draws[:, 0], draws[:, 1])
        for row, seed in enumerate((7, 8)):
            single = tiny.inputs(family, rows=2, only=row)
            prompt = single["input_ids"].shape[1]
            alone = model.generate(**single, **options, generators=streams(seed))[0, prompt:].tolist()
            torch.manual_seed(seed)
            assert model.generate(**single, **options)[0, prompt:].tolist() == alone
            assert together[row, : len(alone)].tolist() == alone
        with pytest.raises(InvalidInput, match="1 generators for 2 rows"):
            model.generate(**batch, **options, generators=streams(7))


@pytest.mark.parametrize("changes", [{"alpha": 0.0}, {"reference_parity": True}])
def test_accepting_all_is_top_k_sampling(changes: dict[str, Any]) -> None:
    ours = sample(seewhen.method("saliency", **ALONE, **changes))
    stock = sample("regular", top_k=5)
    assert ours.tolist() == stock.tolist()
    assert ours.tolist() != sample("regular", top_k=5, seed=6).tolist()
    # Temperature and top-p come first, as in any sampling.
    options = {"temperature": 2.0, "top_p": 0.8}
    ours = sample(seewhen.method("saliency", **ALONE, **changes), top_k=0, **options)
    least = [len(set(row)) for row in ours.tolist()]
    assert min(least) > 1


def test_one_candidate_is_greedy() -> None:
    method = seewhen.method("saliency", **ALONE, top_k=1, alpha=100.0)
    assert sample(method).tolist() == sample("regular", do_sample=False).tolist()


def test_draws_are_without_replacement_and_in_proportion() -> None:
    torch.manual_seed(0)
    probs = torch.tensor([0.6, 0.3, 0.1, 0.0]).expand(20000, -1)
    state = torch.get_rng_state()
    order = draw_order(probs, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(order[:, 0], torch.multinomial(probs, 1)[:, 0])
    assert (order.sort(dim=1).values == torch.tensor([0, 1, 2])).all()
    first = torch.bincount(order[:, 0], minlength=3) / len(order)
    torch.testing.assert_close(first, torch.tensor([0.6, 0.3, 0.1]), atol=0.015, rtol=0)
    second = torch.bincount(order[order[:, 0] == 0, 1], minlength=3)
    assert second[1] / second.sum() == pytest.approx(0.75, abs=0.02)  # 0.3 / (0.3 + 0.1)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl", "internvl", "instructblip", "gemma3"])
def test_rejection(family: str) -> None:
    """Accepted saliencies are recorded: at least alpha times the mean of the last ones, or all were drawn."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    method = seewhen.method("saliency", **ALONE, alpha=1.05, history=2)
    torch.manual_seed(1)
    with seewhen.attach(model, method) as handle:
        model.generate(**inputs, **SAMPLED, eos_token_id=NEVER_A_TOKEN, pad_token_id=0)
        trace = handle.trace
    saliency, draws = trace.saliency, trace.draws
    assert saliency.shape == draws.shape == (8, 2) and (saliency > 0).all()
    assert (draws[0] == 1).all() and (draws[1:] > 1).any() and (draws <= 3).all()
    for step in range(1, 8):
        threshold = 1.05 * saliency[max(0, step - 2) : step].mean(dim=0)
        assert ((saliency[step] >= threshold - 1e-6) | (draws[step] == 3)).all()
    assert all(parameter.grad is None for parameter in model.parameters())
    if family in ("llava", "qwen2_5_vl"):  # the recorded saliencies are those of the final text
        prefill = prefill_of(model, inputs)
        for step in (0, 3, 7):
            with seewhen.attach(model, method):
                probe = SaliencyProbe(
                    seewhen.Backbone.of(model),
                    prefill,
                    trace.tokens[:step].T,
                    method.target_layers(seewhen.Backbone.of(model)),
                )
            torch.testing.assert_close(probe.score(trace.tokens[step]), saliency[step], atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("draws", [1, 3, 5])
def test_all_rejected_takes_the_most_salient(draws: int) -> None:
    """Of all top K, as the released code: also of those that were not drawn."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    method = seewhen.method("saliency", **ALONE, alpha=1e6, top_k=5, draws=draws)
    torch.manual_seed(2)
    with seewhen.attach(model, method) as handle:
        model.generate(**inputs, **SAMPLED, eos_token_id=NEVER_A_TOKEN, pad_token_id=0)
        trace = handle.trace
        prefill, backbone = prefill_of_trace(handle), seewhen.Backbone.of(model)
        for step in range(1, 8):
            probe = SaliencyProbe(backbone, prefill, trace.tokens[:step].T, method.target_layers(backbone))
            candidates = probe.log_probs[0].topk(5).indices
            scores = torch.cat([probe.score(token[None]) for token in candidates])
            assert trace.draws[step].item() == draws
            assert trace.tokens[step].item() == candidates[scores.argmax()].item()


def prefill_of_trace(handle: Any) -> Prefill:
    return handle.session.last.prefill


class Collect(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[Tensor] = []

    def put(self, value: Tensor) -> None:
        self.got.append(value)

    def end(self) -> None:
        """Nothing to flush."""


def test_streams_and_static_caches() -> None:
    method = seewhen.method("saliency", alpha=1.0)
    plain = sample(method, rows=1)
    collected = Collect()
    assert sample(method, rows=1, streamer=collected).tolist() == plain.tolist()
    assert torch.cat(collected.got[1:]).tolist() == plain[0].tolist()
    static = sample(method, rows=1, cache_implementation="static", disable_compile=True)
    assert static.tolist() == plain.tolist()


@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "qwen3_5"])
def test_inference_mode(family: str) -> None:
    """Gradients are needed, and had, even where everything else runs in inference mode."""
    method = seewhen.method("saliency", alpha=1.0, first_layer=0, last_layer=1)
    plain = sample(method, family=family)
    with torch.inference_mode():
        assert sample(method, family=family).tolist() == plain.tolist()


def test_modes_that_cannot_be() -> None:
    with pytest.raises(UnsupportedMode, match="do_sample"):
        sample("saliency", do_sample=False)
    with pytest.raises(UnsupportedMode, match="beam search"):
        sample("saliency", num_beams=2)
    with pytest.raises(UnsupportedMode, match="custom_generate"):
        sample("saliency", custom_generate=lambda *args, **kwargs: None)
    with pytest.raises(InvalidMethod, match="both judge tokens"):
        seewhen.attach(tiny.model("llava"), "saliency+saliency:alpha=1")


@pytest.mark.parametrize("other", ["cai:start_layer=0,threshold=-1,contrast=3", "vcd"])
def test_beside_another_method_it_draws_from_that_ones_scores(other: str) -> None:
    """The likeliest token alone is the other's greedy choice; of more, each row draws as it would alone."""
    greedy = generate(tiny.model("llava"), tiny.inputs("llava", rows=2), other, max_new_tokens=8).sequences
    prompt = tiny.inputs("llava", rows=2)["input_ids"].shape[1]
    assert sample(f"saliency:top_k=1,beta=0+{other}").tolist() == greedy[:, prompt:].tolist()
    plain = generate(tiny.model("llava"), tiny.inputs("llava", rows=2), "regular", max_new_tokens=8).sequences
    assert greedy.tolist() != plain.tolist()
    both = f"saliency:alpha=1.05,history=2+{other}"
    together = sample(both, generators=streams(7, 8)).tolist()
    model = tiny.model("llava")
    for row, seed in enumerate((7, 8)):
        single = tiny.inputs("llava", rows=2, only=row)
        output = generate(model, single, seewhen.method(both), **SAMPLED, generators=streams(seed)).sequences
        assert output[0, single["input_ids"].shape[1] :].tolist() == together[row]


def test_target_layers() -> None:
    deep = seewhen.Backbone.of(tiny.model("llava", num_hidden_layers=32))
    assert seewhen.method("saliency").target_layers(deep) == (6, 7, 8)
    hybrid = seewhen.Backbone.of(tiny.model("qwen3_5"))
    assert seewhen.method("saliency").target_layers(hybrid) == (1,)
    with pytest.raises(InvalidMethod, match="no softmax attention"):
        seewhen.method("saliency", first_layer=2, last_layer=2).parts(hybrid)
    for bad in ({"top_k": 0}, {"draws": 0}, {"history": 0}, {"alpha": -1.0}, {"beta": -0.1}, {"window": 0}):
        with pytest.raises(InvalidMethod):
            seewhen.method("saliency", **bad)


# -- LocoRE ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocoREByHand(Intervention):
    """Multiply the last outputs' weights by 1 + beta after the softmax, and divide by the new sum."""

    beta: float
    window: int

    def edits(self, backbone: seewhen.Backbone) -> frozenset[int]:
        return frozenset(backbone.softmax_layers)

    def attend(self, step: Any, memory: Any, call: AttentionCall) -> Tensor:
        if step.prefill is not None:
            return call.output
        weights = call.scores.softmax(-1)
        columns = weights.shape[-1]
        start = max(step.sequence.prompt_length, columns - self.window)
        weights[..., start:] *= 1 + self.beta
        weights = weights / weights.sum(-1, keepdim=True)
        value = call.value.repeat_interleave(call.groups, dim=1)
        return torch.einsum("rhc,rhcd->rhd", weights, value)[:, None]


@dataclass(frozen=True)
class ByHand(Method):
    beta: float
    window: int

    def parts(self, backbone: seewhen.Backbone) -> Parts:
        return Parts(interventions=(LocoREByHand(self.beta, self.window),))


@pytest.mark.parametrize("window", [1, 3, 100])
def test_locore_is_its_definition(window: int) -> None:
    model, inputs = tiny.model("llava", num_key_value_heads=2), tiny.inputs("llava")
    continuation = some_tokens(steps=8)[0]
    ours = seewhen.replay(model, inputs, continuation, seewhen.method("locore", beta=0.7, window=window))
    hand = seewhen.replay(model, inputs, continuation, ByHand(0.7, window))
    close(ours.logits, hand.logits, 1e-4)
    stock = seewhen.replay(model, inputs, continuation, "regular")
    assert torch.equal(ours.logits[0], stock.logits[0])  # the prompt has no outputs yet
    assert ((ours.logits - stock.logits)[1:].abs().amax(dim=-1) > 1e-4).all()


def test_locore_acts_inside_saliency() -> None:
    """SGRS that accepts all, with LocoRE, samples what LocoRE alone samples."""
    both = sample(seewhen.method("saliency", alpha=0.0, beta=0.9), rows=1)
    assert both.tolist() == sample(seewhen.method("locore", beta=0.9), rows=1, top_k=5).tolist()
