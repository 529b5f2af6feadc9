"""What belongs to one `generate` call: its inputs, its sequence, its notes. Nothing of it lives on the session.

Calls of one attached model may run in several threads, and inside each other (a streamer or a logits
processor that asks the model itself). Each thread has a stack of its running calls; the innermost is the one
that a forward pass of this thread belongs to.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.decoding.sequence import CachedSequence


@dataclass
class Call:
    """One `generate` call while it runs, and what it left."""

    inputs: dict[str, Any] = field(default_factory=dict)
    placement: object = None
    options: dict[str, Any] = field(default_factory=dict)  # arguments that are the method's own
    sequence: CachedSequence | None = None
    notes: list[str] = field(default_factory=list)
    steps: Tensor | None = None  # (rows, tokens): the pass that made each token, where some were taken back
    told: list[dict[str, Any]] = field(default_factory=list)  # what a judge tells of each row


class _Thread(threading.local):
    """A thread's own calls, and what its forward passes have seen so far."""

    def __init__(self) -> None:
        self.stack: list[Call] = []
        self.finished = Call()
        self.ids: Tensor | None = None
        self.outer_ids: Tensor | None = None
        self.kwargs: dict[str, Any] = {}


class Calls:
    """The calls of one session, thread by thread."""

    def __init__(self) -> None:
        self.thread = _Thread()
        self._lock = threading.Lock()
        self._running = 0
        self._process = os.getpid()
        self._ended: list[Any] = []

    @property
    def current(self) -> Call:
        """This thread's innermost call; outside of all calls the one that ended last."""
        stack = self.thread.stack
        return stack[-1] if stack else self.thread.finished

    @property
    def awaits_prompt(self) -> bool:
        """Whether a call of this thread runs and has not read its prompt yet.

        What is read after that is not the call's own: a logits processor may run passes too, as guidance does.
        """
        return bool(self.thread.stack) and self.current.sequence is None

    def began(self, sequence: CachedSequence) -> None:
        """A prompt was read."""
        if self.awaits_prompt or not self.thread.stack:
            self.current.sequence = sequence

    @contextmanager
    def running(self, call: Call) -> Iterator[Call]:
        """`call` as this thread's innermost one."""
        self._after_fork()
        with self._lock:
            self._running += 1
        self.thread.stack.append(call)
        try:
            yield call
        finally:
            self.thread.finished = self.thread.stack.pop()
            with self._lock:
                self._running -= 1
                ended, self._ended = (self._ended, []) if not self._running else ([], self._ended)
            for do in ended:
                do()

    def when_all_ended(self, do: Any) -> None:
        """Call `do` once no call is running any more; now, if none is."""
        self._after_fork()
        with self._lock:
            if self._running:
                self._ended.append(do)
                return
        do()

    def _after_fork(self) -> None:
        # A forked process has this thread only: other threads' calls and their locks stayed behind.
        if self._process != os.getpid():
            self._process, self._lock = os.getpid(), threading.Lock()
            self._running, self._ended = len(self.thread.stack), []


def left_early(method: str) -> UnsupportedMode:
    """The error of a call whose context was left before it ended."""
    return UnsupportedMode(
        f"The context of {method} was left while this call was still generating.",
        "Wait for all threads before leaving `with seewhen.attach(...)`.",
    )


def option(model: Any, arguments: Mapping[str, Any], name: str, default: Any) -> Any:
    """An option of a `generate` call: its argument, else of the configuration given, else of the model's own."""
    given = arguments.get("generation_config")
    values = [getattr(config, name, None) for config in (given, model.generation_config)]
    if name in arguments:
        values = [arguments[name]]
    return next((value for value in values if value is not None), default)
