"""What passes between a request and the thread that answers it: a job one way, events the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from seewhen.decoding.method import Method
from seewhen.server.failures import ApiError
from seewhen.server.sampling import Sampling


@dataclass(frozen=True)
class LogProb:
    """A token as it stands in the text, with its log-probability and those of the likeliest in its place."""

    text: str
    log_prob: float
    best: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Started:
    """The prompt was accepted and the first token is there: nothing about the request can be wrong any more."""

    prompt_tokens: int
    rows: int  # of the batch it runs in


@dataclass(frozen=True)
class Delta:
    """New text of answer number `index`; for streamed requests only. `live` is what a trace tells of it."""

    index: int
    text: str
    log_probs: tuple[LogProb, ...] = ()
    live: Mapping[str, Any] = field(default_factory=dict)
    numbers: tuple[int, ...] = ()  # of its tokens, where they are asked for


@dataclass(frozen=True)
class Finished:
    """Answer number `index` is complete. `stopped` says why it ended early, if it did."""

    index: int
    text: str
    tokens: int
    reason: str
    log_probs: tuple[LogProb, ...]
    fired: int | None  # tokens that were tilted; None where the method has no gate
    stopped: str | None = None
    trace: dict[str, Any] | None = None
    told: dict[str, Any] | None = None  # what the method itself tells: verdicts
    by: str | None = None  # the stop string that ended it
    numbers: tuple[int, ...] = ()  # of its tokens without the one that ended it


@dataclass(frozen=True)
class Failed:
    """No answer will come."""

    error: ApiError


@dataclass(frozen=True)
class Done:
    """All answers are complete."""

    notes: tuple[str, ...] = ()


Event = Started | Delta | Finished | Failed | Done


@dataclass(eq=False)
class Job:
    """One request, ready to run. `post` may be called from any thread."""

    id: str
    prompt: str
    images: tuple[Image.Image, ...]
    method: Method
    fingerprint: str
    sampling: Sampling
    n: int
    max_tokens: int
    deadline: float  # of time.monotonic()
    post: Callable[[Event], None]
    stops: tuple[str, ...] = ()
    keeps_stop: bool = False  # in the answer
    begun: str = ""  # the answer as far as the prompt has it
    runners: int | None = None  # how many of the likeliest tokens to report; None: no log-probabilities
    numbers: bool = False  # of tokens are told
    trace: bool = False
    objects: tuple[str, ...] | None = None  # what the pictures show, where the client knows it
    num_beams: int = 1
    stream: bool = False
    cancelled: bool = False
    started: bool = field(default=False, init=False)
    # What the model reads, when it is ready; of None where it is prepared with its batch.
    prepared: Future[dict[str, Any] | None] | None = field(default=None, init=False)

    @property
    def ready(self) -> bool:
        """Whether its prompt is prepared, or will be with its batch."""
        return self.prepared is None or self.prepared.done()

    @property
    def alone(self) -> bool:
        """Whether it decodes in a way that cannot share a batch."""
        return self.num_beams > 1 or self.method.samples_only or not self.method.batches

    @property
    def company(self) -> tuple[object, ...]:
        """Jobs with equal `company` may share a batch."""
        length = self.max_tokens if self.method.judges else None
        return (self.id,) if self.alone else (self.fingerprint, self.trace, bool(self.images), length)

    @property
    def weight(self) -> int:
        """Bytes of its decoded images."""
        return sum(3 * image.width * image.height for image in self.images)
