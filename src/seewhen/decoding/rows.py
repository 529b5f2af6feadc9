"""State of single rows that a row takes along when it goes back to an earlier token.

Keys and values need none of this: their columns are hidden. What is left are statistics that interventions keep
from step to step, and the states of recurrent layers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from seewhen.decoding.sequence import CachedSequence


class Saved:
    """The state of each row when it was last kept."""

    def __init__(self, sequence: CachedSequence, cache: Any) -> None:
        self._sequence, self._cache = sequence, cache
        self._kept: list[Tensor] = []

    def keep(self, rows: Iterable[int]) -> None:
        """Remember the state of `rows` as it is now."""
        now = self._tensors()
        if len(self._kept) != len(now):
            self._kept = [tensor.clone() for tensor in now]
            return
        self._copy(now, self._kept, rows)

    @property
    def holds(self) -> bool:
        """Whether there is any such state."""
        return bool(self._kept)

    def restore(self, row: int) -> None:
        """Put a row's state back."""
        self._copy(self._kept, self._tensors(), [row])

    def _copy(self, source: list[Tensor], target: list[Tensor], rows: Iterable[int]) -> None:
        if not source:
            return
        index = torch.tensor(list(rows), dtype=torch.long)
        every = self._sequence.all_index(index)
        for new, old in zip(source, target, strict=True):
            place = (every if len(old) == self._sequence.all_rows else index).to(old.device)
            old.index_copy_(0, place, new.index_select(0, place))

    def _tensors(self) -> list[Tensor]:
        sequence = self._sequence
        found: list[Tensor] = []
        for intervention, memory in zip(sequence.interventions, sequence.memories, strict=True):
            found += intervention.state(memory)
        for layer in getattr(self._cache, "layers", ()):
            for name in ("conv_states", "recurrent_states"):
                states = getattr(layer, name, None)
                found += [s for s in states.values() if s is not None] if isinstance(states, dict) else []
        return found
