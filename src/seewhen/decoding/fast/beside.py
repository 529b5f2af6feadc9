"""A second queue of a GPU, on which prompts are read beside the steps that are queued already.

Reading a prompt keeps the device computing, steps keep it reading memory, and what the host asks of the one queue
does not wait for the other. The order is simple: a reading begins when what the last one left has been taken, and
whatever is queued after a reading waits for it. So only readings and steps that were queued before them run at the
same time, and these share nothing that either writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch


@cache
def _second(device: torch.device) -> Any:
    """One for all models on a device: torch has few, and gives them out again."""
    return torch.cuda.Stream(device)


class Beside:
    """The second queue of one device; without a GPU there is none, and everything happens in turn."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = _second(device) if device.type == "cuda" else None
        self._taken: Any = None  # when what was read last had been taken; None: all that is queued must end before

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is queued inside runs beside the steps queued before; what is queued afterwards waits for it."""
        if self._stream is None:
            yield
            return
        steps = torch.cuda.current_stream(self._stream.device)
        taken, self._taken = self._taken, None  # after an error nothing is known
        if taken is None:
            self._stream.wait_stream(steps)
        else:
            self._stream.wait_event(taken)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            steps.wait_stream(self._stream)

    def taken(self) -> None:
        """What was read has been copied, as far as is queued now: the next may be read beside what follows."""
        if self._stream is not None:
            self._taken = torch.cuda.current_stream(self._stream.device).record_event()

    def in_turn(self) -> None:
        """Something else than a captured step was queued: the next reading waits for it."""
        self._taken = None
