"""Tilts that are told where to look, or that look where attention or the next word points."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.method import Method, Parts
from seewhen.decoding.prefill import pad_rows
from seewhen.decoding.sequence import Step
from seewhen.decoding.tilted_attention import Relevance, Targets, Tilt
from seewhen.equations import where


@dataclass
class Place:
    """Weights of the image tokens (rows, tokens), which whoever decodes may change from step to step."""

    weights: Tensor
    units: Tensor | None = None  # the image's states at layer 0, of length one


@dataclass(frozen=True, eq=False)
class PlacedTilt(Tilt):
    """Tilts towards a given place."""

    place: Place = field(default_factory=lambda: Place(torch.zeros(0, 0)))

    def _look(self, step: Step, memory: Any, hidden: Tensor) -> Targets:
        states, image, rows = hidden[: step.sequence.rows], step.sequence.image, hidden.shape[0]
        if step.prefill is not None:
            self.place.units = where.unit(
                states.gather(1, image.columns[..., None].expand(-1, -1, states.shape[-1]))
            )
        return Targets(*image.padded(rows), pad_rows(self.place.weights, rows))


@dataclass(frozen=True, eq=False)
class AttentionTilt(PlacedTilt):
    """Tilts towards where the attention of an earlier layer lies."""

    pointing: int = 0

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """The tilted layers, and the one that is read."""
        return frozenset({*self.layers, self.pointing})

    def attend(self, step: Step, memory: Any, call: AttentionCall) -> Tensor:
        """The pointing layer keeps its output."""
        if call.layer != self.pointing:
            return super().attend(step, memory, call)
        targets: Targets = step.scratch_of(self)["targets"]
        scores = call.scores_at(targets.columns)
        attention = torch.exp(scores - call.log_normaliser).masked_fill(~targets.valid[:, None], 0.0).mean(dim=1)
        weights = attention / attention.amax(dim=-1, keepdim=True).clamp(min=1e-12)
        step.scratch_of(self)["targets"] = Targets(targets.columns, targets.valid, weights)
        return call.output


@dataclass(frozen=True, eq=False)
class Pointed(Method):
    """An exponential tilt without a gate, in the layers from `start` (a share of the depth) on."""

    name: ClassVar[str] = "pointed"
    start: float
    strength: float
    place: Place | None = None
    relevance: Relevance = Relevance()
    pointing: int | None = None

    def parts(self, backbone: Backbone) -> Parts:
        """One tilt."""
        first = int(self.start * backbone.num_layers)
        layers = tuple(layer for layer in backbone.softmax_layers if layer >= first)
        shared: dict[str, Any] = {"gate": None, "form": "exponential", "strength": self.strength}
        if self.pointing is not None:
            assert self.place is not None and self.pointing < first
            return Parts((AttentionTilt(layers, **shared, place=self.place, pointing=self.pointing),))
        if self.place is not None:
            return Parts((PlacedTilt(layers, **shared, place=self.place),))
        return Parts((Tilt(layers, relevance=self.relevance, **shared),))
