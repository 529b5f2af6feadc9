"""Who looks at the decoding loop of a batch: hands out its tokens, and says which rows are finished."""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers import StoppingCriteria

if TYPE_CHECKING:
    from seewhen.server.jobs import Job


class WatchedBatch(Protocol):
    """The decoding of a batch, as far as it is looked at."""

    def step(self, tokens: Sequence[int]) -> list[bool]:
        """Take the tokens that all rows got in this step; which rows are finished."""


class WatchedRow(Protocol):
    """One answer of it."""

    job: Job

    @property
    def finished(self) -> bool:
        """Whether its last token is there."""


class Steps(StoppingCriteria):
    """Called after every step: hands out the new tokens and says which rows are finished."""

    def __init__(self, run: WatchedBatch) -> None:
        # Weak: the run's handle keeps what `generate` was given for its trace, and this is among it. A circle
        # would keep the batch's cache until the garbage collector comes by.
        self._run = weakref.ref(run)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        run = self._run()
        assert run is not None  # it waits for the call that asks
        done = run.step(input_ids[:, -1].tolist())
        return torch.tensor(done, dtype=torch.bool, device=input_ids.device)


class Settled:
    """A streamer: hands out the tokens that a judge will not take back."""

    def __init__(self, run: WatchedBatch) -> None:
        self._run = weakref.ref(run)
        self._prompt = True  # comes first

    def put(self, tokens: Tensor) -> None:
        """One token of each row."""
        run = self._run()
        assert run is not None
        if not self._prompt:
            run.step(tokens.tolist())
        self._prompt = False

    def end(self) -> None:
        """Rows that a judge ended get no last token; `BatchDecoding.close` ends them."""


class Over(StoppingCriteria):
    """For judged rows, whose newest token may yet be taken back: only looks whether to go on."""

    def __init__(self, rows: Sequence[WatchedRow]) -> None:
        self._rows = rows

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        now = time.monotonic()
        over = [row.finished or row.job.cancelled or now > row.job.deadline for row in self._rows]
        return torch.tensor(over, dtype=torch.bool, device=input_ids.device)


class Watch(StoppingCriteria):
    """For beams, whose rows are not answers yet: only looks whether to go on."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        over = self._job.cancelled or time.monotonic() > self._job.deadline
        return torch.full((input_ids.shape[0],), over, dtype=torch.bool, device=input_ids.device)
