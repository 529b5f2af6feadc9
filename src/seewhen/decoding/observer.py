"""The observer: what a full trace needs to see beside what the method itself records."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.prefill import Prefill
from seewhen.decoding.sequence import CachedSequence, Intervention, Step
from seewhen.decoding.tilted_attention import Relevance
from seewhen.equations.when import entropy
from seewhen.equations.where import cosine_to_units, unit

_LENS_ROWS = 128  # states that go through the head together: as many rows of logits are held at once
_ENTROPY_ROWS = 8  # of those, whose entropy is read together: what lies between its steps stays in a core's cache
_WAITING = 4096  # states that may wait for it


class Outputs(NamedTuple):
    """What some layers put out in one step."""

    step: Tensor  # (1,)
    layers: tuple[int, ...]
    states: Tensor  # (layers, rows, d)


@dataclass
class ObserverMemory:
    """The observer's memory of a sequence."""

    images: dict[int, Tensor] = field(default_factory=dict)  # source layer -> its image states, of length one
    waiting: list[Outputs] = field(default_factory=list)  # whose entropy is not known yet


@dataclass(frozen=True)
class Observer(Intervention):
    """Reads, and changes nothing: entropy after every layer, image attention of every softmax layer,
    relevance (and the bare cosine) at chosen source layers, each head's attention at chosen layers.

    `own_relevance` is False when the method's tilt already records the relevance it uses; `gated` are the layers
    whose entropy its gate records.
    """

    any_prompt_length: ClassVar[bool] = True

    relevance_layers: tuple[int, ...] = ()
    head_layers: tuple[int, ...] = ()
    own_relevance: bool = True
    gated: frozenset[int] = frozenset()
    entropy_base: float = math.e  # the method's own unit, so that entropies and thresholds compare
    relevance: Relevance = Relevance(query="tail_mean")

    def sees(self, backbone: Backbone) -> frozenset[int]:
        """All layers."""
        return frozenset(range(backbone.num_layers))

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """All softmax layers, to look at their attention."""
        return frozenset(backbone.softmax_layers)

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> ObserverMemory:
        """Declare the buffers."""
        recorder, rows = sequence.recorder, sequence.rows
        tokens = sequence.image.columns.shape[1]
        for name in ("entropy", "mass_before", "mass_after"):
            recorder.declare(name, (rows, recorder.layers))
        for name in ("attention_before", "attention_after"):
            recorder.declare(name, (rows, recorder.layers, tokens))
        if self.own_relevance:
            recorder.declare("relevance", (rows, tokens))
        for layer in self.relevance_layers:
            recorder.declare(f"relevance_at_{layer}", (rows, tokens))
            recorder.declare(f"cosine_at_{layer}", (rows, tokens))
        return ObserverMemory()

    def before_layer(self, step: Step, memory: ObserverMemory, layer: int, hidden: Tensor) -> None:
        """Keep the output of the layer before, for its entropy; relevance if this is a source layer."""
        sequence, recorder = step.sequence, step.recorder
        states = hidden[: sequence.rows]
        outputs = step.scratch_of(self).setdefault("outputs", {})
        if layer and layer - 1 not in self.gated:
            outputs[layer - 1] = states[:, -1]
        if layer == recorder.layers - 1:
            self._keep(step, memory, outputs)
        names = [f"relevance_at_{layer}"] if layer in self.relevance_layers else []
        if self.own_relevance and layer == 0:
            names.append("relevance")
        if not names:
            return
        if step.prefill is not None:
            index = sequence.image.columns[..., None].expand(-1, -1, states.shape[-1])
            memory.images[layer] = unit(states.gather(1, index.to(states.device)))
        query = self.relevance.query_vector(states, step.prefill)
        valid = sequence.image.valid.to(states.device)
        weights = self.relevance.weights(query, memory.images[layer], valid)
        for name in names:
            recorder.write(name, weights)
        if layer in self.relevance_layers:
            # The weights saturate in float32 a sixth above the lowest cosine; the cosine keeps the order.
            recorder.write(f"cosine_at_{layer}", cosine_to_units(query, memory.images[layer], valid))

    def _keep(self, step: Step, memory: ObserverMemory, outputs: dict[int, Tensor]) -> None:
        """Until there are many: the head is read from memory once for all of them."""
        if not outputs:
            return
        device = next(iter(outputs.values())).device
        states = torch.stack([state.to(device) for state in outputs.values()])
        memory.waiting.append(Outputs(step.recorder.step.clone(), tuple(outputs), states))
        # What a captured step leaves lying is overwritten by the next.
        if not step.sequence.growing or sum(map(_rows, memory.waiting)) >= _WAITING:
            self.complete(step.sequence, memory)

    def complete(self, sequence: CachedSequence, memory: ObserverMemory, passes: Tensor | None = None) -> None:
        """The entropies that wait."""
        waiting, memory.waiting = memory.waiting, []
        if passes is not None:  # of tokens that were taken back nobody wants to know
            wanted = {*passes.flatten().tolist()}
            waiting = [outputs for outputs in waiting if int(outputs.step) in wanted]
        if not waiting:
            return
        device, together = waiting[0].states.device, max(1, _LENS_ROWS // sequence.rows)
        places = [(layer, outputs.step) for outputs in waiting for layer in outputs.layers]
        states = torch.cat([outputs.states.to(device) for outputs in waiting])
        for start, some in zip(range(0, len(places), together), states.split(together), strict=True):
            logits = sequence.backbone.lens(some)
            parts = logits.split(_ENTROPY_ROWS) if logits.device.type == "cpu" else (logits,)
            values = torch.cat([entropy(part, self.entropy_base) for part in parts])
            for value, (layer, step) in zip(values, places[start : start + together], strict=True):
                sequence.recorder.write("entropy", value, layer, step)

    def attend(self, step: Step, memory: Any, call: AttentionCall) -> Tensor:
        """Record the image attention; a tilt that runs later overwrites the `after` part."""
        sequence, rows = step.sequence, step.sequence.rows
        columns, valid = (t.to(call.query.device) for t in sequence.image.padded(call.query.shape[0]))
        attention = torch.exp(call.scores_at(columns) - call.log_normaliser)
        attention = attention.masked_fill(~valid[:, None], 0.0)[:rows]
        mass, mean = attention.sum(dim=-1).mean(dim=1), attention.mean(dim=1)
        for when in ("before", "after"):
            step.recorder.write(f"mass_{when}", mass, call.layer)
            step.recorder.write(f"attention_{when}", mean, call.layer)
            if call.layer in self.head_layers:
                if step.prefill is not None:  # only here is the number of heads known
                    step.recorder.declare(f"heads_{when}_at_{call.layer}", tuple(attention.shape))
                step.recorder.write(f"heads_{when}_at_{call.layer}", attention)
        return call.output


def _rows(outputs: Outputs) -> int:
    return outputs.states.shape[0] * outputs.states.shape[1]
