"""Pictures that come several times in one batch are prepared once.

Benchmarks ask many questions about one picture, and resizing and normalising take longer than reading a cached
prompt. What comes out is the same, value for value. Processors that pack pictures otherwise than one row each
(Qwen's flattened patches, say) are asked for all of them, as ever.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Sequence
from typing import Any

import torch


def once_per_picture(processor: Any, rows: Sequence[Sequence[Any]]) -> Any:
    """The processor for these rows of pictures (the same object is the same picture)."""
    first: dict[tuple[int, ...], int] = {}
    kept = [first.setdefault(tuple(map(id, row)), place) for place, row in enumerate(rows)]
    inner = getattr(processor, "image_processor", None)
    if len(first) == len(rows) or not callable(inner):
        return processor
    changed = copy.copy(processor)  # the one given may be in use in another thread
    changed.image_processor = _Once(inner, rows, kept)
    return changed


class _Once:
    """An image processor that sees each row of pictures once; everything else is the real one's."""

    def __init__(self, inner: Any, rows: Sequence[Sequence[Any]], kept: Sequence[int]) -> None:
        self._inner, self._rows = inner, rows
        self._distinct = sorted(set(kept))
        place = {row: k for k, row in enumerate(self._distinct)}
        self._order = [place[row] for row in kept]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, images: Any, **kwargs: Any) -> Any:
        if self._are_the_rows(images):
            found = self._inner([images[row] for row in self._distinct], **kwargs)
            if found and all(_one_each(value, len(self._distinct)) for value in found.values()):
                order = torch.tensor(self._order)
                for name in list(found):
                    found[name] = found[name][order]
                return found
        return self._inner(images, **kwargs)

    def _are_the_rows(self, images: Any) -> bool:
        """As they were given, or as a list that the processor has made of them, one picture each."""
        if not isinstance(images, (list, tuple)) or len(images) != len(self._rows):
            return False
        listed = [tuple(row) if isinstance(row, (list, tuple)) else (row,) for row in images]
        return all(
            len(a) == len(b) and all(map(operator.is_, a, b)) for a, b in zip(listed, self._rows, strict=True)
        )


def _one_each(value: Any, count: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and len(value) == count
