"""A defect of CAI's released code, for exact parity: the tilt leaks into the text-only row.

The released text-only pass runs through the same patched layers. It is protected only by a check that
the sequence is longer than the end `e` of the image span, so once the text-only sequence itself grows
past `e` (about 611 tokens on LLaVA-1.5, so never in the published evaluations), its columns `[s, e)`,
which are text, are tilted too: in layers where the main row's gate was open, or where the entropy of
the text-only row itself exceeds the threshold. Only the preset `reference` does this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from seewhen.decoding.prefill import Prefill, pad_rows
from seewhen.decoding.sequence import CachedSequence, Step
from seewhen.decoding.tilted_attention import Targets, Tilt, _Memory
from seewhen.equations.when import entropy


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

    def _decide(self, step: Step, memory: _Memory, layer: int, hidden: Tensor) -> Tensor:
        sequence, gate = step.sequence, super()._decide(step, memory, layer, hidden)
        assert self.gate is not None and self.gate.threshold is not None
        own = entropy(sequence.backbone.lens(hidden[sequence.rows :, -1]), self.gate.base)
        step.scratch_of(self)[f"leak{layer}"] = gate | (own > self.gate.threshold)
        return gate

    def _in_branches(
        self, step: Step, memory: _Memory, layer: int, targets: Targets, gate: Tensor
    ) -> tuple[Targets, Tensor]:
        sequence, scratch = step.sequence, step.scratch_of(self)
        main = sequence.rows
        if step.prefill is not None or sequence.hidden is None:
            return targets, gate
        columns, valid, weights = targets.columns, targets.valid, targets.weights
        assert isinstance(memory, _LeakMemory)
        hidden = sequence.hidden.sum(dim=1, keepdim=True)
        # The same offsets from the row's own first token, in the branch row's columns.
        moved = columns[:main] + hidden[main:] - hidden[:main]
        end = sequence.image.columns.amax(dim=1) + 1 - hidden[:main, 0]
        length = memory.prompt_length - hidden[main:, 0] + step.recorder.step
        grown = length > end
        leaked = scratch[f"leak{layer}"] & grown
        branch = torch.where(grown[:, None], moved, 0)
        moved_targets = Targets(
            torch.cat([columns[:main], branch]),
            torch.cat([valid[:main], valid[:main] & grown[:, None]]),
            torch.cat([weights[:main], weights[:main]]),
        )
        return moved_targets, torch.cat([gate[:main], pad_rows(leaked, main)])
