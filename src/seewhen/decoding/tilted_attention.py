"""The attention intervention of CAI and PAI: relevance (where), gate (when) and tilt (how) put together."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone
from seewhen.backbones.plain import plain_weight
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.decoding.prefill import Prefill, pad_rows
from seewhen.decoding.sequence import CachedSequence, Intervention, Step
from seewhen.equations import tilt, when, where

RelevanceForm = Literal["sigmoid", "shifted", "uniform"]
QueryForm = Literal["last", "tail_mean"]
TiltForm = Literal["score", "exponential"]
Kernel = Literal["correction", "bias"]


@dataclass(frozen=True)
class Relevance:
    """WHERE, as parameters: see `seewhen.equations.where`."""

    form: RelevanceForm = "shifted"
    scale: float = 100.0
    floor: float = 0.5
    query: QueryForm = "last"
    source_layer: int = 0

    def weights(self, query: Tensor, units: Tensor, valid: Tensor) -> Tensor:
        """Weights (rows, tokens) of the image tokens, vectors of length one, for the query vectors (rows, d)."""
        if self.form == "uniform":
            return valid.float()
        cos = where.cosine_to_units(query, units, valid)
        if self.form == "sigmoid":
            return where.sigmoid_relevance(cos, valid, self.scale)
        return where.shifted_relevance(cos, valid, self.scale, self.floor)

    def fuses(self, query: Tensor, units: Tensor, valid: Tensor) -> bool:
        """Whether our kernels compute the weights."""
        if self.form == "uniform" or not kernels_run_on(units.device):
            return False
        from seewhen.decoding.kernels import relevance_kernel

        return relevance_kernel.takes(query, units, valid)

    def fused_weights(self, query: Tensor, units: Tensor, valid: Tensor, rows: int) -> Tensor:
        """The same in two kernels, with the branch rows among all `rows`."""
        from seewhen.decoding.kernels import relevance_kernel

        floor = self.floor if self.form == "shifted" else None
        return relevance_kernel.weights(query, units, valid, rows, self.scale, floor)

    def query_vector(self, states: Tensor, prefill: Prefill | None) -> Tensor:
        """The query among `states` (rows, positions, d): last token, or mean of the prompt tail in prefill."""
        if prefill is None or self.query == "last":
            return states[:, -1]
        return where.tail_mean(states, prefill.tail)


@dataclass(frozen=True)
class Targets:
    """Where a step tilts, all (rows, tokens) with nothing to tilt in branch rows."""

    columns: Tensor
    valid: Tensor
    weights: Tensor


@dataclass
class _Memory:
    features: Tensor | None  # (rows, tokens, d) at the source layer, of length one
    present: Tensor  # (rows,), bool: rows that have an image at all
    history: dict[int, when.RunningEntropy] = field(default_factory=dict)


@dataclass(frozen=True)
class Tilt(Intervention):
    """Tilts the last row of attention of `layers` towards the image. `gate` None means always."""

    any_prompt_length: ClassVar[bool] = True
    rows_apart: ClassVar[bool] = True

    layers: tuple[int, ...]
    relevance: Relevance = Relevance()
    gate: when.Gate | None = when.Gate()
    form: TiltForm = "score"
    strength: float = 1.0
    kl_budget: float | None = None
    kernel: Kernel = "correction"
    edit_prefill: bool = True

    def sees(self, backbone: Backbone) -> frozenset[int]:
        """The source layer of the relevance, and each tilted layer for its gate."""
        return frozenset({self.relevance.source_layer, *self.layers})

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """The tilted layers."""
        return frozenset(self.layers)

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> _Memory:
        """Allocate the gate's history and the trace buffers."""
        recorder, rows = sequence.recorder, sequence.rows
        memory = _Memory(features=None, present=sequence.image.valid.any(dim=1))
        if self.gate is not None and self.gate.threshold is None:
            for layer in self.layers:
                memory.history[layer] = when.RunningEntropy.zeros(rows, prefill.embeds.device)
        recorder.declare("gate", (rows, recorder.layers), fill=False)
        if self.gate is not None:
            recorder.declare("entropy", (rows, recorder.layers))
            recorder.declare("threshold", (rows, recorder.layers))
        if recorder.full:
            tokens = sequence.image.columns.shape[1]
            recorder.declare("relevance", (rows, tokens))
            for name in ("mass_before", "mass_after"):
                recorder.declare(name, (rows, recorder.layers))
            for name in ("attention_before", "attention_after"):
                recorder.declare(name, (rows, recorder.layers, tokens))
        return memory

    def before_layer(self, step: Step, memory: _Memory, layer: int, hidden: Tensor) -> None:
        """Compute the weights at the source layer, and the gate before each tilted layer."""
        scratch = step.scratch_of(self)
        if layer == self.relevance.source_layer:
            scratch["targets"] = self._look(step, memory, hidden)
        if layer in self.layers:
            scratch[f"gate{layer}"] = self._decide(step, memory, layer, hidden)

    def _look(self, step: Step, memory: _Memory, hidden: Tensor) -> Targets:
        sequence = step.sequence
        states, image = hidden[: sequence.rows], sequence.image
        if step.prefill is not None:
            index = image.columns[..., None].expand(-1, -1, states.shape[-1]).to(states.device)
            memory.features = where.unit(states.gather(1, index))
        assert memory.features is not None  # a prefill came first
        query = self.relevance.query_vector(states, step.prefill)
        valid, rows = image.valid.to(states.device), hidden.shape[0]
        if step.prefill is None and sequence.fast and self.relevance.fuses(query, memory.features, valid):
            weights = self.relevance.fused_weights(query, memory.features, valid, rows)
        else:
            weights = pad_rows(self.relevance.weights(query, memory.features, valid), rows)
        step.recorder.write("relevance", weights[: sequence.rows])
        return Targets(*image.padded(rows), weights)

    def _decide(self, step: Step, memory: _Memory, layer: int, hidden: Tensor) -> Tensor:
        """Which main rows are tilted in `layer`."""
        sequence, recorder = step.sequence, step.recorder
        open_ = memory.present.to(hidden.device)
        if step.prefill is not None and not self.edit_prefill:
            open_ = torch.zeros_like(open_)
        if step.fork is not None and self.gate is not None and layer in step.fork.forked.layers:
            return step.fork.undecided(layer, hidden[:, -1], self.gate, memory.history.get(layer), open_)
        states = hidden[: sequence.rows, -1]
        if self.gate is not None and sequence.fast and _one_pass(sequence.backbone, states):
            from seewhen.decoding.kernels import gate_kernel

            head, history = sequence.backbone.head.weight, memory.history.get(layer)
            states = sequence.backbone.norm(states)
            return gate_kernel.decide(states, head, open_, self.gate, history, recorder, layer)
        uncertainty = threshold = None
        if self.gate is not None:
            uncertainty = when.entropy(sequence.backbone.lens(states), self.gate.base)
            threshold = self._threshold(memory, layer, uncertainty)
            open_ = open_ & (uncertainty > threshold)
        recorder.write_gate(layer, open_, uncertainty, threshold)
        return open_

    def _threshold(self, memory: _Memory, layer: int, uncertainty: Tensor) -> Tensor:
        assert self.gate is not None
        if self.gate.threshold is not None:
            return torch.full_like(uncertainty, self.gate.threshold)
        history = memory.history[layer]
        threshold = history.threshold(self.gate.sd_factor, self.gate.start).to(uncertainty.device)
        history.update(uncertainty.to(history.mean.device))
        return threshold

    def undecided(self, sequence: CachedSequence) -> tuple[int, ...]:
        """All layers of a plain gated tilt that our kernels serve."""
        plain = type(self) is Tilt and self.gate is not None and self.kl_budget is None
        weight = plain_weight(sequence.backbone.head)
        if not plain or not sequence.fast or sequence.recorder.full or weight is None:
            return ()
        return self.layers if _one_pass(sequence.backbone, weight[:1]) else ()

    def fuses(self, step: Step) -> bool:
        """A plain tilt whose attention nobody records."""
        return self.kl_budget is None and not step.recorder.full

    def attend(self, step: Step, memory: _Memory, call: AttentionCall) -> Tensor:
        """Tilt the last row where the gate is open; other rows keep their bits."""
        scratch = step.scratch_of(self)
        gate = pad_rows(scratch[f"gate{call.layer}"], call.query.shape[0])
        if call.fused is not None:
            return call.fused(_column_weights(scratch, call), gate, self.form, self.strength)
        targets, gate = self._in_branches(step, memory, call.layer, scratch["targets"], gate)
        device = call.query.device
        columns, valid, gate = targets.columns.to(device), targets.valid.to(device), gate.to(device)
        weights = targets.weights.to(device)[:, None]
        scores = call.scores_at(columns)
        attention = torch.exp(scores - call.log_normaliser).masked_fill(~valid[:, None], 0.0)
        bias = self.bias(scores, attention, weights).masked_fill(~valid[:, None], 0.0)
        if self.kernel == "bias":
            row = _through_sdpa(call, columns, bias)
        else:
            old = call.output[:, -1].float()
            row = tilt.corrected_output(old, attention, bias, call.values_at(columns))
        self._record(step, call.layer, attention, bias, gate)
        return call.replace_last(row, gate)

    def _in_branches(
        self, step: Step, memory: _Memory, layer: int, targets: Targets, gate: Tensor
    ) -> tuple[Targets, Tensor]:
        """Targets and gate (rows,) of all rows: here no branch is tilted."""
        return targets, gate

    def bias(self, scores: Tensor, attention: Tensor, weights: Tensor) -> Tensor:
        """What is added to the scores (rows, heads, tokens) of the image, by weights (rows, 1, tokens)."""
        if self.form == "score":
            return tilt.score_bias(scores, weights, self.strength)
        if self.kl_budget is None:
            return tilt.exponential_bias(weights, self.strength).expand_as(scores)
        strength = tilt.solve_strength(attention, weights, self.kl_budget)
        return tilt.exponential_bias(weights, strength[..., None])

    def _record(self, step: Step, layer: int, attention: Tensor, bias: Tensor, gate: Tensor) -> None:
        if not step.recorder.full:
            return
        main = slice(0, step.sequence.rows)
        gated = torch.where(gate[main, None, None], bias[main], 0.0)
        before = attention[main]
        for name, value in (("before", before), ("after", tilt.tilted(before, gated))):
            step.recorder.write(f"mass_{name}", value.sum(dim=-1).mean(dim=1), layer)
            step.recorder.write(f"attention_{name}", value.mean(dim=1), layer)
            step.recorder.write(f"heads_{name}_at_{layer}", value)  # kept only where the observer asked for it

    def state(self, memory: _Memory) -> tuple[Tensor, ...]:
        """The gates' histories."""
        return tuple(tensor for history in memory.history.values() for tensor in history.tensors())


def _column_weights(scratch: dict[str, Any], call: AttentionCall) -> Tensor:
    """The weights at their columns, (rows, columns), zero elsewhere; the same for all layers of a step."""
    if "columns" not in scratch:
        from seewhen.decoding.kernels.relevance_kernel import spread

        targets: Targets = scratch["targets"]
        scratch["columns"] = spread(targets.weights, targets.columns, targets.valid, call.key.shape[2])
    return scratch["columns"]


def _one_pass(backbone: Backbone, states: Tensor) -> bool:
    """Whether the gate's kernel serves this model: entropy without logits, decision and record in one go."""
    from seewhen.decoding.kernels import gate_kernel

    return backbone.plain_head and gate_kernel.takes(states, backbone.head)


def _through_sdpa(call: AttentionCall, columns: Tensor, bias: Tensor) -> Tensor:
    """The other implementation of the tilt: an additive bias on the last row, through SDPA."""
    mask = torch.zeros_like(call.scores).masked_fill(torch.isneginf(call.scores), -math.inf)
    # scatter_add: several padded entries may name column 0, all but the real one with bias 0.
    mask = mask.scatter_add(-1, columns[:, None].expand_as(bias), bias)
    key = call.key.repeat_interleave(call.groups, dim=1)
    value = call.value.repeat_interleave(call.groups, dim=1)
    if not call.plain:
        return torch.einsum("rhc,rhcd->rhd", call.probabilities(call.scores + mask), value.float())
    row: Any = torch.nn.functional.scaled_dot_product_attention(
        call.query[:, :, -1:].float(),
        key.float(),
        value.float(),
        attn_mask=mask[:, :, None],
        scale=call.scaling,
    )
    return row[:, :, 0]
