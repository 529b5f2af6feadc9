"""Out of memory: how to tell, and batches that are halved until they fit."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA's own class, Python's, and the text of the CPU allocator's plain RuntimeError."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
        or "not enough memory" in text
    )


def free_memory() -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


class Halving:
    """Work on batches, halved when memory runs out. The smaller size is kept: the next would not fit either."""

    def __init__(self) -> None:
        self.most: int | None = None  # the largest batch known to fit, once one did not

    def __call__(self, items: Sequence[Item], work: Callable[[Sequence[Item]], Result]) -> list[Result]:
        """The results of all parts, in order. A single item that does not fit raises."""
        done: list[Result] = []
        rest = list(items)
        while rest:
            part = rest[: self.most or len(rest)]
            try:
                done.append(work(part))
            except (MemoryError, RuntimeError) as error:
                if len(part) == 1 or not is_out_of_memory(error):
                    raise
                self.most = len(part) // 2
            else:
                rest = rest[len(part) :]
                continue
            # Outside the except clause, where the exception no longer keeps the batch's tensors alive.
            free_memory()
        return done
