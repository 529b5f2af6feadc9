"""LVLMs-Saliency: SGRS and LocoRE (Zhang et al., ICLR 2026).

Idea: a token is suspect if the outputs before it had no say in it. SGRS (saliency-guided rejection sampling)
draws a token from the top K, takes its saliency `|P * dLoss/dP|` (attention times gradient of
`-log p(token)`, mean over heads, each row of unit length) on the columns after the image, averages over a few
early layers, and accepts the token if this is at least `alpha` times the mean of the last accepted ones;
otherwise it draws again, at most `draws` times, and falls back to the most salient of all K, drawn or not.
LocoRE multiplies the attention of the newest token to the last `window` outputs by `1 + beta`, and renormalises.

Source: the paper (via a text copy) and its released code (README says MIT, no licence file; LocoRE is not in
it). Written from the formulas. The released SGRS reads the candidate's own attention row, on which the loss
does not depend: its saliencies are all zero, it accepts every first draw and is top-K sampling at a high
price (`reference_parity=True`, here without the price). Ours reads the row that predicts the candidate. That
row does not depend on the candidate either, so one forward pass serves all draws, with a backward pass from the
first target layer up for each. No other position depends on that row, so the pass is over the newest token alone,
after a cache of its own: it sees the plain model, without LocoRE, and uses causal attention also where a model
lets image tokens see ahead (Gemma 3, PaliGemma). All rows of a batch share the passes, each with its own draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor

from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.judge import Judge
from seewhen.decoding.method import Method, Parts, Preset
from seewhen.decoding.prefill import Prefill, pad_rows
from seewhen.decoding.sequence import CachedSequence, Intervention, Step
from seewhen.equations import tilt
from seewhen.errors import InvalidInput, InvalidMethod
from seewhen.methods.saliency_probe import SaliencyProbe

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.aside import Aside


# -- LocoRE ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecentOutputs(Intervention):
    """Raises the newest row's attention to the last outputs by the factor `1 + beta`."""

    any_prompt_length: ClassVar[bool] = True

    beta: float
    window: int

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """All layers with full softmax attention."""
        return frozenset(backbone.softmax_layers)

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> Tensor:
        """The prompt's length, on the device: a captured step serves prompts of several lengths."""
        return torch.full((1,), sequence.prompt_length, device=prefill.embeds.device)

    def fuses(self, step: Step) -> bool:
        """A factor on the attention is a constant added to the scores."""
        return step.prefill is None

    def attend(self, step: Step, memory: Tensor, call: AttentionCall) -> Tensor:
        """Nothing in the prompt, which has no outputs yet."""
        if step.prefill is not None:
            return call.output
        if call.fused is not None:
            return call.fused(*self._everywhere(step, call, memory), "exponential", math.log1p(self.beta))
        sequence, device, rows = step.sequence, call.query.device, call.query.shape[0]
        first = memory.to(device)
        newest = first - 1 + step.recorder.step.to(device)
        columns = newest - torch.arange(self.window, device=device)
        valid = (columns >= first).expand(rows, -1)
        columns = columns.clamp(min=0).expand(rows, -1)
        attention = torch.exp(call.scores_at(columns) - call.log_normaliser)
        bias = math.log1p(self.beta) * valid[:, None].float().expand_as(attention)
        row = tilt.corrected_output(call.output[:, -1].float(), attention, bias, call.values_at(columns))
        main = torch.ones(sequence.rows, dtype=torch.bool, device=device)
        return call.replace_last(row, pad_rows(main, rows))

    def _everywhere(self, step: Step, call: AttentionCall, first: Tensor) -> tuple[Tensor, Tensor]:
        """One on recent outputs and zero elsewhere, (rows, columns), and the main rows; once per step."""
        scratch = step.scratch_of(self)
        if "columns" not in scratch:
            newest = first - 1 + step.recorder.step
            at = torch.arange(call.key.shape[2], device=first.device)
            recent = (at >= first) & (at > newest - self.window) & (at <= newest)
            main = torch.ones(step.sequence.rows, 1, dtype=torch.bool, device=first.device)
            gate = pad_rows(main, call.query.shape[0])
            scratch["columns"] = (gate & recent).float(), gate[:, 0]
        weights, gate = scratch["columns"]
        return weights, gate


_BETAS = {
    "llava-1.5": Preset({"beta": 0.15}, "paper; the window is ours"),
    "qwen2-vl": Preset({"beta": 0.20}, "paper; the window is ours"),
}


def _check_recent(name: str, beta: float, window: int) -> None:
    if beta < 0:
        raise InvalidMethod(f"{name}: beta={beta} is negative.", "Use 0 (off) or more; the paper has 0.15.")
    if window < 1:
        raise InvalidMethod(f"{name}: window={window}.", "Use at least one output.")


@dataclass(frozen=True)
class LocoRE(Method):
    """Local coherence reinforcement alone: `1 + beta` times the attention to the last `window` outputs."""

    name: ClassVar[str] = "locore"
    summary: ClassVar[str] = "more attention to the most recent outputs"
    source: ClassVar[str] = "Zhang et al., ICLR 2026; not in the released code"
    needs_image: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Preset]] = _BETAS

    beta: Annotated[float, "attention to the recent outputs is multiplied by 1 + beta; 0: left alone"] = 0.15
    window: Annotated[int, "how many outputs are recent"] = 10

    def __post_init__(self) -> None:
        _check_recent(self.name, self.beta, self.window)

    def parts(self, backbone: Backbone) -> Parts:
        """One intervention on all softmax layers."""
        return Parts(interventions=(RecentOutputs(self.beta, self.window),) if self.beta else ())


# -- SGRS --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probed(Intervention):
    """Has the target layers run through our attention function; declares what is recorded of each token."""

    layers: tuple[int, ...]

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """The target layers; their output stays as it is."""
        return frozenset(self.layers)

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> None:
        """Two numbers per token."""
        sequence.recorder.declare("saliency", (sequence.rows,))
        sequence.recorder.declare("draws", (sequence.rows,))


class _Rejects(Judge):
    """Draws, judges, and leaves the sampler one token to choose."""

    def __init__(
        self, method: Saliency, aside: Aside, layers: tuple[int, ...], generators: Sequence[torch.Generator] | None
    ) -> None:
        self.method, self.aside, self.layers, self.generators = method, aside, layers, generators
        rows = aside.sequence.rows
        if generators is not None and len(generators) != rows:
            raise InvalidInput(f"saliency: {len(generators)} generators for {rows} rows.", "Give one per row.")
        self.history: list[Tensor] = []
        self.fed: list[Tensor] = []  # tokens the probes have read, those of ended rows included
        # The probes' own cache, from the prompt as the running one holds it. None where layers keep a state:
        # their kernels for single tokens may have no gradient, so each probe reads everything.
        with torch.inference_mode(False), torch.no_grad():
            self.past = aside.copied(aside.prefill.embeds.shape[1] - 1)

    def scores(self, tokens: Sequence[list[int]], scores: Tensor) -> Tensor:
        """All but one token at minus infinity."""
        method, scores = self.method, scores.float()
        least = scores.topk(min(method.top_k, scores.shape[-1]), dim=-1).values[:, -1:]
        probs = torch.softmax(scores.masked_fill(scores < least, -torch.inf), dim=-1)
        order = draw_order(probs, min(method.top_k, probs.shape[-1]), self.generators)
        token = order[:, 0] if method.reference_parity else self._accepted(probs, order)
        self.fed.append(token)
        return torch.full_like(scores, -torch.inf).scatter(1, token[:, None], 0.0)

    def _accepted(self, probs: Tensor, order: Tensor) -> Tensor:
        recorder = self.aside.sequence.recorder
        tokens = torch.stack(self.fed, dim=1) if self.fed else order[:, :0]
        probe = SaliencyProbe(self.aside.sequence.backbone, self.aside.prefill, tokens, self.layers, self.past)
        threshold = torch.zeros(len(order), device=order.device)
        if self.history:
            recent = torch.stack(self.history[-self.method.history :])
            threshold = self.method.alpha * recent.mean(dim=0)
        token, value = order[:, 0], torch.full_like(threshold, -math.inf)
        accepted = torch.zeros_like(threshold, dtype=torch.bool)
        draws = torch.zeros_like(threshold)
        for number, candidate in enumerate(order.unbind(dim=1)):
            possible = probs.gather(1, candidate[:, None])[:, 0] > 0  # there may be fewer than K
            score = probe.score(candidate).to(order.device)
            # Those after the last draw are for rows that rejected all: they take the best of the K.
            drawn = number < self.method.draws
            passes = ~accepted & possible & (score >= threshold) & drawn
            better = passes | (~accepted & possible & (score > value))
            token, value = torch.where(better, candidate, token), torch.where(better, score, value)
            if drawn:
                draws = draws + (~accepted & possible)
            accepted = accepted | passes
            if bool(accepted.all()):
                break
        self.history.append(value)
        recorder.write("saliency", value)
        recorder.write("draws", draws)
        return token


def draw_order(probs: Tensor, draws: int, generators: Sequence[torch.Generator] | None = None) -> Tensor:
    """`draws` tokens per row without replacement, in the order drawn: (rows, draws).

    An exponential race, whose first token is what `torch.multinomial` would draw from the same state of the
    random generator. The state is put back: the sampler after us draws once per token as well. With
    `generators`, one per row and on the CPU, each row draws from its own, whoever shares the batch.
    """
    if generators is not None:
        waits = torch.stack([torch.empty(probs.shape[-1]).exponential_(generator=one) for one in generators])
        return (probs / waits.to(probs.device)).topk(draws, dim=-1).indices
    devices = [probs.device] if probs.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        return (probs / torch.empty_like(probs).exponential_()).topk(draws, dim=-1).indices


@dataclass(frozen=True)
class Saliency(Method):
    """SGRS, with LocoRE for `beta` > 0. It samples; temperature and top-p apply before its top K.

    Target layers are `first_layer` to `last_layer`, numbers or shares of the depth (6 to 8 of 32 layers).
    `reference_parity` reads the row the released code reads: no draw is ever rejected.
    `generate` then also takes `generators`, a `torch.Generator` per row: a row's answer no longer depends on
    the batch it is in.
    """

    name: ClassVar[str] = "saliency"
    summary: ClassVar[str] = "reject tokens on which earlier outputs had no influence; attend to recent ones"
    source: ClassVar[str] = "Zhang et al., ICLR 2026; code MIT by its README"
    needs_image: ClassVar[bool] = False
    beams: ClassVar[bool] = False
    compiles: ClassVar[bool] = False  # it needs gradients
    samples_only: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ("generators",)
    presets: ClassVar[Mapping[str, Preset]] = _BETAS

    top_k: Annotated[int, "tokens to draw from"] = 5
    draws: Annotated[int, "draws before the most salient of the top K is taken"] = 3
    alpha: Annotated[float, "a token needs this share of the mean saliency of those before; 0: all pass"] = 0.6
    history: Annotated[int, "how many accepted tokens that mean goes over"] = 5
    first_layer: Annotated[int | float, "first layer that counts: a number, or a share of the depth"] = 6 / 32
    last_layer: Annotated[int | float, "last layer that counts: a number, or a share of the depth"] = 8 / 32
    beta: Annotated[float, "LocoRE: attention to the recent outputs is multiplied by 1 + beta; 0: off"] = 0.15
    window: Annotated[int, "LocoRE: how many outputs are recent"] = 10
    reference_parity: Annotated[bool, "as the released code, which never rejects a draw"] = False

    def __post_init__(self) -> None:
        _check_recent(self.name, self.beta, self.window)
        for name in ("top_k", "draws", "history"):
            if getattr(self, name) < 1:
                raise InvalidMethod(f"saliency: {name}={getattr(self, name)}.", "Use 1 or more.")
        if self.alpha < 0:
            raise InvalidMethod(f"saliency: alpha={self.alpha} is negative.", "Use 0 (accept all) or more.")

    def target_layers(self, backbone: Backbone) -> tuple[int, ...]:
        """The softmax layers whose saliency is read."""
        first, last = (
            bound if isinstance(bound, int) else math.floor(bound * backbone.num_layers)
            for bound in (self.first_layer, self.last_layer)
        )
        layers = tuple(layer for layer in backbone.softmax_layers if first <= layer <= last)
        if not layers:
            raise InvalidMethod(
                f"saliency: layers {first} to {last} hold no softmax attention in this model.",
                f"Choose first_layer and last_layer around some of {list(backbone.softmax_layers)}.",
            )
        return layers

    def parts(self, backbone: Backbone) -> Parts:
        """A judge that rejects samples, and LocoRE."""
        layers = self.target_layers(backbone)
        recent = (RecentOutputs(self.beta, self.window),) if self.beta else ()

        def judge(aside: Aside) -> Judge:
            return _Rejects(self, aside, layers, aside.options.get("generators"))

        return Parts(interventions=(Probed(layers), *recent), judge=judge)
