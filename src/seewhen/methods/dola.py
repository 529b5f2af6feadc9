"""DoLa: Decoding by Contrasting Layers (Chuang et al., ICLR 2024).

Idea: facts are settled in late layers, so subtract what an early layer would have said:
`score = log p_final - log p_j` on the plausible tokens (`p_final >= 0.1 max`), where `j` is the
candidate layer whose early exit `softmax(W x^j)` differs most from the final distribution at this step.
Early exits skip the final norm, as in the original code and in its port to transformers; the paper's text
implies a norm. Candidates count hidden states: 0 are the embeddings, `j` is the input of layer `j`.

Source: the paper and its released code (README says MIT, no licence file; the port is Apache-2.0).
Written from the formulas. It is a method for language models; no official settings for images exist, and
the language scripts add a repetition penalty of 1.2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.prefill import Prefill
from seewhen.decoding.sequence import CachedSequence, Intervention, Step
from seewhen.equations.contrast import cut
from seewhen.errors import InvalidMethod

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

_DEEP = 40  # above this depth candidates come from the 20 lowest or highest layers only
_KEY = "dola_states"


def candidate_layers(layers: str | tuple[int, ...], depth: int, tied: bool) -> tuple[int, ...]:
    """The candidate hidden states of a decoder with `depth` layers: `low`, `high` or given ones.

    With tied embeddings state 0 would predict its own input token, so `low` starts at 2.
    """
    if not isinstance(layers, str):
        return tuple(layers)
    if layers == "high":
        start, stop = (depth // 2, depth) if depth <= _DEEP else (depth - 20, depth)
    else:
        start, stop = 2 if tied else 0, depth // 2 if depth <= _DEEP else 20
    return tuple(range(start, stop, 2)) or (min(start, depth - 1),)


def mixture_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """What the code takes for the Jensen-Shannon divergence: KL from the mixture to its members.

    `1/2 mean_v m ln(m / p) + 1/2 mean_v m ln(m / q)` with `m = (p + q) / 2`: arguments in reverse order,
    and a mean over the vocabulary.
    """
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return (log_m.exp() * (log_m - 0.5 * (log_p + log_q))).mean(dim=-1)


def jensen_shannon(log_p: Tensor, log_q: Tensor) -> Tensor:
    """The Jensen-Shannon divergence in nats."""
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(dim=-1)


@dataclass(frozen=True)
class EarlyStates(Intervention):
    """Keeps the last position's hidden states that go into `layers`."""

    any_prompt_length: ClassVar[bool] = True
    rows_apart: ClassVar[bool] = True

    layers: tuple[int, ...]

    def sees(self, backbone: Backbone) -> frozenset[int]:
        """The candidates."""
        return frozenset(self.layers)

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> None:
        """Declare what is recorded: the layer chosen at each step, and how far each candidate was."""
        sequence.recorder.declare("early_layer", (sequence.rows,))
        if sequence.recorder.full:
            sequence.recorder.declare("divergence", (sequence.rows, len(self.layers)))

    def before_layer(self, step: Step, memory: None, layer: int, hidden: Tensor) -> None:
        """Keep the state."""
        states = step.scratch_of(self).setdefault(_KEY, {})
        states[layer] = hidden[: step.sequence.rows, -1]


@dataclass(frozen=True)
class DoLa(Method):
    """Contrast with the early layer that differs most. `layers` is "low", "high" or hidden-state numbers.

    `reference_parity` (on: the published algorithm is its code) measures the difference as the code does;
    off takes the true Jensen-Shannon divergence. `layer_per="batch"` is the port's choice of one layer
    for a whole batch, which makes a row's text depend on its neighbours.
    """

    name: ClassVar[str] = "dola"
    summary: ClassVar[str] = "subtract what an early layer would have said"
    source: ClassVar[str] = "Chuang et al., ICLR 2024; code MIT by its README, port Apache-2.0"
    joins: ClassVar[bool] = True
    needs_image: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Preset]] = {
        "low": Preset({"layers": "low"}, "released code: FACTOR and reasoning; usual in papers on images"),
        "high": Preset({"layers": "high"}, "released code: TruthfulQA"),
    }

    layers: Annotated[str | tuple[int, ...], "candidate layers: low, high, or numbers of hidden states"] = "low"
    relative_top: Annotated[float, "tokens less likely than this share of the likeliest are never chosen"] = 0.1
    layer_per: Annotated[
        Literal["row", "batch"],
        "each row its own early layer, or one for the batch as in the port to transformers",
    ] = "row"
    reference_parity: Annotated[
        bool, "distance of layers as in the released code; off: Jensen-Shannon divergence"
    ] = True

    def __post_init__(self) -> None:
        if isinstance(self.layers, str):
            if self.layers not in ("low", "high"):
                raise InvalidMethod(f"dola: layers={self.layers!r}.", "Use 'low', 'high' or a list of numbers.")
        else:
            object.__setattr__(self, "layers", tuple(int(layer) for layer in self.layers))
            if not self.layers or min(self.layers) < 0 or len(set(self.layers)) != len(self.layers):
                raise InvalidMethod(
                    f"dola: layers={list(self.layers)}.", "Give distinct hidden-state numbers from 0."
                )
        if not 0.0 <= self.relative_top <= 1.0:
            raise InvalidMethod(f"dola: relative_top={self.relative_top}.", "Choose it between 0 and 1.")
        if self.layer_per not in ("row", "batch"):
            raise InvalidMethod(f"dola: layer_per={self.layer_per!r}.", "Use 'row' or 'batch'.")
        if self.layer_per == "batch":  # hides the class's: a row looks at its neighbours
            object.__setattr__(self, "joins", False)

    def candidates(self, backbone: Backbone) -> tuple[int, ...]:
        """The candidate hidden states on this model."""
        layers = candidate_layers(self.layers, backbone.num_layers, backbone.tied)
        if max(layers) >= backbone.num_layers:
            raise InvalidMethod(
                f"dola: layers={list(layers)} on a model with {backbone.num_layers} layers.",
                f"Early states are 0 (the embeddings) to {backbone.num_layers - 1}.",
            )
        return layers

    def parts(self, backbone: Backbone) -> Parts:
        """Hidden states of the candidates, and a rule that projects them."""
        return Parts(interventions=(EarlyStates(self.candidates(backbone)),), rule=self._rule)

    def _rule(self, logits: Logits) -> Tensor:
        backbone, recorder = logits.sequence.backbone, logits.sequence.recorder
        states: dict[int, Tensor] = next(scratch[_KEY] for scratch in logits.scratch if _KEY in scratch)
        final = torch.log_softmax(logits.main, dim=-1)
        device = final.device
        early = torch.stack(
            [torch.log_softmax(backbone.project(x).to(device).float(), -1) for x in states.values()]
        )
        divergence = mixture_divergence if self.reference_parity else jensen_shannon
        distances = divergence(final, early)  # (candidates, rows)
        recorder.write("divergence", distances.T)
        if self.layer_per == "batch":
            distances = distances.mean(dim=1, keepdim=True).expand_as(distances)
        choice = distances.argmax(dim=0)
        # Not a tensor of the layers, indexed: copying one to the device cannot be captured.
        numbers = [layer * (choice == place) for place, layer in enumerate(states)]
        recorder.write("early_layer", torch.stack(numbers).sum(dim=0))
        chosen = early.gather(0, choice[None, :, None].expand(1, -1, final.shape[-1]))[0]
        return cut(final - chosen, final, self.relative_top)
