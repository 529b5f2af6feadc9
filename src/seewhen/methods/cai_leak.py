"""A defect of CAI's released code, for exact parity: the tilt leaks into the text-only row.

The released text-only pass runs through the same patched layers. It is protected only by a check that
the sequence is longer than the end `e` of the image span, so once the text-only sequence itself grows
past `e` (about 611 tokens on LLaVA-1.5, so never in the published evaluations; at once, where more text
follows the image than it has tokens), its columns `[s, e)`, which are text, are tilted too: in layers where
the entropy of the text-only row itself exceeds the threshold, and in layers where the main row's gate was
open, whose weights are still there. In the prompt's pass the two have different weights, for the text-only
row looks for the mean of its own tokens from column `e` on. Only the preset `reference` does this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from seewhen.decoding.prefill import Prefill
from seewhen.decoding.sequence import CachedSequence, Step
from seewhen.decoding.tilted_attention import Targets, Tilt, _Memory
from seewhen.equations.when import entropy
from seewhen.equations.where import tail_mean


@dataclass
class _LeakMemory(_Memory):
    # On the device, because a captured step serves prompts of several lengths.
    prompt_length: Tensor = field(default_factory=lambda: torch.zeros(1, dtype=torch.long))


@dataclass(frozen=True)
class LeakyTilt(Tilt):
    """`Tilt` with the leak. It knows one branch, the text-only row, and a fixed threshold."""

    rows_apart: ClassVar[bool] = False  # one length of the prompt for all rows

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> _LeakMemory:
        """Also remember the prompt's length."""
        plain = super().begin(sequence, prefill)
        length = torch.full((1,), sequence.prompt_length, device=prefill.embeds.device)
        return _LeakMemory(None, plain.present, prompt_length=length)

    def fuses(self, step: Step) -> bool:
        """Branch rows are tilted elsewhere than main rows."""
        return False

    def _look(self, step: Step, memory: _Memory, hidden: Tensor) -> Targets:
        targets, main = super()._look(step, memory, hidden), step.sequence.rows
        own = targets.weights[:main]
        if step.prefill is not None and step.sequence.hidden is not None:
            assert memory.features is not None
            states, (start, end) = hidden[main:], _span(step.sequence)
            tail = torch.arange(states.shape[1], device=start.device) >= (start + end)[:, None]
            query = states[:, -1] if self.relevance.query == "last" else tail_mean(states, tail.to(states.device))
            own = self.relevance.weights(query, memory.features, step.sequence.image.valid.to(states.device))
        step.scratch_of(self)["own"] = own
        return targets

    def _decide(self, step: Step, memory: _Memory, layer: int, hidden: Tensor) -> Tensor:
        sequence, gate = step.sequence, super()._decide(step, memory, layer, hidden)
        assert self.gate is not None and self.gate.threshold is not None
        own = entropy(sequence.backbone.lens(hidden[sequence.rows :, -1]), self.gate.base)
        step.scratch_of(self)[f"leak{layer}"] = own > self.gate.threshold
        return gate

    def _in_branches(
        self, step: Step, memory: _Memory, layer: int, targets: Targets, gate: Tensor
    ) -> tuple[Targets, Tensor]:
        sequence, scratch = step.sequence, step.scratch_of(self)
        main = sequence.rows
        if sequence.hidden is None:
            return targets, gate
        columns, valid, weights = targets.columns, targets.valid, targets.weights
        assert isinstance(memory, _LeakMemory)
        start, end = _span(sequence)
        # The same offsets from the row's own first token, in the branch row's columns.
        moved = columns[:main] + (start - sequence.hidden[:main].sum(dim=1))[:, None]
        grown = memory.prompt_length - start + step.recorder.step > end
        uncertain = scratch[f"leak{layer}"]
        branch = torch.where(grown[:, None], moved, 0)
        moved_targets = Targets(
            torch.cat([columns[:main], branch]),
            torch.cat([valid[:main], valid[:main] & grown[:, None]]),
            torch.cat([weights[:main], torch.where(uncertain[:, None], scratch["own"], weights[:main])]),
        )
        return moved_targets, torch.cat([gate[:main], (gate[:main] | uncertain) & grown])


def _span(sequence: CachedSequence) -> tuple[Tensor, Tensor]:
    """The first column of each text-only row, and the end of its main row's image from that row's first token."""
    assert sequence.hidden is not None
    padding = sequence.hidden.sum(dim=1)
    return padding[sequence.rows :], sequence.image.columns.amax(dim=1) + 1 - padding[: sequence.rows]
