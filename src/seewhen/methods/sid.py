"""SID: Self-Introspective Decoding (Huo et al., ICLR 2025).

Idea: a row that sees only the least attended image tokens hallucinates; subtract it. The second row has
the same image; at every step the head-mean attention of its newest token in layer `layer - 1` ranks the
image tokens, and all but the `keep` least attended are hidden from it in the layers from `layer` on.
The scores are `(1 + alpha) z - alpha z'` with the plausibility cut of `beta`.

Source: the paper and its released code (no licence found). Written from the formulas. The released
greedy mode, used for its published numbers, takes the largest score without the plausibility cut;
`reference_parity=True` does the same (leave it off to match the released sampling mode).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor

from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.branches import SamePrompt
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.sequence import Intervention
from seewhen.equations.contrast import check_contrast, logit_contrast
from seewhen.errors import InvalidMethod, UnsupportedMode, UnsupportedModel
from seewhen.methods.parameters import Plausibility

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.prefill import Prefill
    from seewhen.decoding.sequence import CachedSequence, Step


@dataclass(frozen=True)
class HideMostAttended(Intervention):
    """In the first branch's rows, hides all image tokens but the `keep` least attended, from `layer` on."""

    any_prompt_length: ClassVar[bool] = True

    layer: int
    keep: int | float

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """The layer whose attention is looked at."""
        return frozenset({self.layer - 1})

    def masks(self, backbone: Backbone) -> frozenset[int]:
        """All layers from `layer` on."""
        return frozenset(range(self.layer, backbone.num_layers))

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> None:
        """A full trace keeps which image tokens stayed visible."""
        if sequence.recorder.full:
            shape = (sequence.rows, sequence.image.columns.shape[1])
            sequence.recorder.declare("kept", shape, fill=False)

    def attend(self, step: Step, memory: Any, call: AttentionCall) -> Tensor:
        """Rank the image tokens; changes nothing here."""
        sequence = step.sequence
        if sequence.branches:
            device, branch = call.query.device, slice(sequence.rows, 2 * sequence.rows)
            columns, valid = sequence.image.columns.to(device), sequence.image.valid.to(device)
            scores = call.scores_at(columns.repeat(1 + sequence.branches, 1))
            attention = torch.exp(scores - call.log_normaliser)[branch].mean(dim=1)
            attention = attention.masked_fill(~valid, torch.inf)
            rank = attention.argsort(dim=1, stable=True).argsort(dim=1)
            kept = valid & (rank < self._number(valid))
            step.recorder.write("kept", kept)
            step.scratch_of(self)["hidden"] = valid & ~kept
        return call.output

    def _number(self, valid: Tensor) -> Tensor | int:
        """How many tokens of each row stay visible: a number, or a share of its image tokens."""
        if isinstance(self.keep, int):
            return self.keep
        return (valid.sum(dim=1, keepdim=True) * self.keep).round().clamp(min=1)

    def edit_mask(
        self, step: Step, memory: Any, layer: int, mask: Tensor | None, shape: tuple[int, int]
    ) -> Tensor | None:
        """Block the hidden columns for all queries of the branch's rows."""
        sequence = step.sequence
        if not sequence.branches:
            return mask
        if mask is not None and mask.dim() != 4:
            raise UnsupportedMode(
                "sid hides columns of single rows, which this attention kernel cannot.",
                "Load the model with attn_implementation='sdpa' or 'eager'.",
            )
        scratch = step.scratch_of(self)
        if "mask" in scratch and scratch["mask"][0] is mask and scratch["mask"][1] == shape:
            edited: Tensor = scratch["mask"][2]  # the layers of one pass share their mask
            return edited
        hidden = scratch["hidden"]
        hidden = hidden.to(mask.device) if mask is not None else hidden
        # Padded entries name column 0 without hiding it, so entries are added up, not assigned.
        blocked = torch.zeros(sequence.all_rows, shape[1], device=hidden.device)
        columns = sequence.image.columns.to(hidden.device)
        blocked[sequence.rows : 2 * sequence.rows].scatter_add_(1, columns, hidden.float())
        edited = _without(mask, blocked[:, None, None] > 0, shape)
        scratch["mask"] = mask, shape, edited
        return edited


def _without(mask: Tensor | None, blocked: Tensor, shape: tuple[int, int]) -> Tensor:
    """A 4-D mask without the `blocked` columns; a query that saw only such still sees itself."""
    if mask is None:  # plain causal attention, or a single query that sees all
        sees = torch.ones(shape, dtype=torch.bool, device=blocked.device)
        sees = (sees.tril() if shape[0] > 1 else sees)[None, None]
    else:
        sees = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min
    left = sees & ~blocked
    if shape[0] > 1:
        itself = torch.eye(*shape, dtype=torch.bool, device=blocked.device)
        left = left | (itself & sees.any(dim=-1, keepdim=True) & ~left.any(dim=-1, keepdim=True))
    if mask is None or mask.dtype == torch.bool:
        return left
    return mask.masked_fill(sees & ~left, torch.finfo(mask.dtype).min)


@dataclass(frozen=True)
class SID(Method):
    """Self-Introspective Decoding. The class defaults are those of the released POPE script."""

    name: ClassVar[str] = "sid"
    summary: ClassVar[str] = "contrast with a row that sees only the least attended image tokens"
    source: ClassVar[str] = "Huo et al., ICLR 2025; code without a licence"
    presets: ClassVar[Mapping[str, Preset]] = {
        "reference:pope": Preset(
            {"reference_parity": True},
            "released code, pope_eval.py (greedy)",
            {"alpha": "the sampler's fallback: the argument's 1 is never forwarded"},
        ),
        "reference:chair": Preset(
            {"keep": 50 / 576, "reference_parity": True},
            "released code, chair_eval.py (greedy)",
            {"alpha": "the sampler's fallback: the argument's 1 is never forwarded"},
        ),
    }

    alpha: Annotated[float, "how much of the second row's logits is subtracted; 0: no contrast"] = 0.5
    plausibility: Plausibility = 0.1
    layer: Annotated[int, "from this layer on the second row sees few image tokens; the one before ranks them"] = 2
    # The released code keeps 100 of 576.
    keep: Annotated[int | float, "image tokens it goes on seeing: a number, or a share below 1"] = 100 / 576
    reference_parity: Annotated[bool, "as the released greedy mode: no plausibility cut"] = False

    def __post_init__(self) -> None:
        check_contrast(self.name, self.alpha, self.plausibility)
        if self.layer < 1:
            raise InvalidMethod(f"sid: layer={self.layer}.", "It reads the layer before, so use 1 or more.")
        share = isinstance(self.keep, float)
        if self.keep <= 0 or (share and self.keep >= 1):
            raise InvalidMethod(
                f"sid: keep={self.keep}.", "Give a number of image tokens, or a share of them between 0 and 1."
            )

    def parts(self, backbone: Backbone) -> Parts:
        """A second row and what hides image tokens from it; nothing at all for alpha = 0."""
        if not self.alpha:
            return Parts()
        touched = set(range(self.layer - 1, backbone.num_layers))
        if self.layer >= backbone.num_layers:
            raise InvalidMethod(
                f"sid: layer={self.layer}, but this model has {backbone.num_layers} layers.",
                "Give a smaller layer.",
            )
        others = sorted(touched - set(backbone.softmax_layers))
        if others:
            raise UnsupportedModel(
                f"sid hides image tokens in all layers from {self.layer} on, but layers {others} of this model "
                "are linear or sliding-window attention: they have no column of the whole prompt to hide.",
                "Use a model with softmax attention in all layers, or another contrast such as vcd.",
            )
        return Parts((HideMostAttended(self.layer, self.keep),), (SamePrompt(),), self._rule)

    def _rule(self, logits: Logits) -> Tensor:
        beta = None if self.reference_parity else self.plausibility
        return logit_contrast(logits.main, logits.branches[0], self.alpha, beta)
