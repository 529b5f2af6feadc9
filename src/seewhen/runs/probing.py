"""A method that changes nothing and looks: at attention, at the row without image, at what a tilt would do."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.branches import TextOnly
from seewhen.decoding.method import Logits, Method, Parts
from seewhen.decoding.prefill import Prefill
from seewhen.decoding.sequence import CachedSequence, Step
from seewhen.decoding.tilted_attention import Targets, Tilt, _Memory
from seewhen.equations import tilt
from seewhen.equations.looking import divergence, effective_patches, row_distance
from seewhen.errors import InvalidMethod
from seewhen.methods import method as make_method

# Of each token: the distributions with and without image, the likeliest token (with image) in both.
BESIDE = ("divergence", "entropy_with", "entropy_without", "logprob_with", "logprob_without", "differs")
# Of each token and tilted layer, means over heads: what the tilt would do if its gate were open.
SHAPE = (
    "negative_scores",
    "effective_before",
    "effective_after",
    "mass_before",
    "mass_after",
    "to_regular",
    "to_uniform",
)
ATTENTION = "probed_attention"


@dataclass(frozen=True)
class ProbedTilt(Tilt):
    """Computes what a tilt would do in its layers, gate open, and leaves attention as it is. In all softmax layers
    it keeps the attention on the image."""

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """All softmax layers, to look at their attention."""
        return frozenset(backbone.softmax_layers)

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> _Memory:
        """Declare the buffers."""
        recorder, rows = sequence.recorder, sequence.rows
        recorder.declare(ATTENTION, (rows, recorder.layers, sequence.image.columns.shape[1]))
        for name in SHAPE:
            recorder.declare(name, (rows, recorder.layers))
        for name in BESIDE:
            recorder.declare(name, (rows,))
        return _Memory(features=None, present=sequence.image.valid.any(dim=1))

    def before_layer(self, step: Step, memory: _Memory, layer: int, hidden: Tensor) -> None:
        """Relevance at its source layer; no gate."""
        if layer == self.relevance.source_layer:
            step.scratch_of(self)["targets"] = self._look(step, memory, hidden)

    def fuses(self, step: Step) -> bool:
        """It wants the stock kernel's output."""
        return False

    def attend(self, step: Step, memory: Any, call: AttentionCall) -> Tensor:
        """Record, and return the output untouched."""
        rows = step.sequence.rows
        targets: Targets = step.scratch_of(self)["targets"]
        device = call.query.device
        columns, valid = targets.columns.to(device), targets.valid.to(device)[:rows, None]
        scores = call.scores_at(columns)[:rows]
        attention = torch.exp(scores - call.log_normaliser[:rows]).masked_fill(~valid, 0.0)
        step.recorder.write(ATTENTION, attention.mean(dim=1), call.layer)
        if call.layer in self.layers:
            weights = targets.weights.to(device)[:rows, None]
            for name, value in self.shape(scores, attention, weights, valid).items():
                step.recorder.write(name, value.mean(dim=1), call.layer)
        return call.output

    def shape(self, scores: Tensor, attention: Tensor, weights: Tensor, valid: Tensor) -> dict[str, Tensor]:
        """What the tilt would do to each head, (rows, heads)."""

        def tilted(by: Tensor) -> Tensor:
            return tilt.tilted(attention, self.bias(scores, attention, by).masked_fill(~valid, 0.0))

        after, even = tilted(weights), tilted(valid.float())
        negative = ((scores < 0) & valid).sum(dim=-1) / valid.sum(dim=-1).clamp(min=1)
        values = (
            negative,
            effective_patches(attention),
            effective_patches(after),
            attention.sum(dim=-1),
            after.sum(dim=-1),
            row_distance(after, attention),
            row_distance(after, even),
        )
        return dict(zip(SHAPE, values, strict=True))


@dataclass(frozen=True)
class Probe(Method):
    """Decodes as the bare model does. `trace.tensors` has what was seen: see `BESIDE`, `SHAPE`, `ATTENTION`."""

    name: ClassVar[str] = "probe"
    beams: ClassVar[bool] = False

    of: Method  # whose tilt is looked at

    @staticmethod
    def on(method: str | Method = "cai") -> Probe:
        """For a method by name."""
        return Probe(make_method(method))

    def parameters(self) -> dict[str, Any]:
        """The method, JSON-ready."""
        return {"of": self.of.to_json()}

    def parts(self, backbone: Backbone) -> Parts:
        """The tilt that is looked at, and a row without image beside."""
        found = [each for each in self.of.parts(backbone).interventions if type(each) is Tilt]
        if not found:
            raise InvalidMethod(f"{self.of.name} has no tilt to look at.", "Use cai or pai.")
        (first, *_) = found
        looked = ProbedTilt(**{field.name: getattr(first, field.name) for field in fields(first)})
        return Parts((looked,), (TextOnly(),), _beside)


def _beside(logits: Logits) -> Tensor:
    """Record how the row without image differs, and leave the scores as they are."""
    recorder = logits.sequence.recorder
    one, other = (torch.log_softmax(each.float(), dim=-1) for each in (logits.main, logits.branches[0]))
    likeliest = one.argmax(dim=-1, keepdim=True)
    values = (
        divergence(one, other),
        torch.special.entr(one.exp()).sum(dim=-1),
        torch.special.entr(other.exp()).sum(dim=-1),
        one.gather(1, likeliest)[:, 0],
        other.gather(1, likeliest)[:, 0],
        (other.argmax(dim=-1) != likeliest[:, 0]).float(),
    )
    for name, value in zip(BESIDE, values, strict=True):
        recorder.write(name, value)
    return logits.main
