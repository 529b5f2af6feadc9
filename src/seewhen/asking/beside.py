"""Several pieces of work beside each other, each on a core of its own.

A step of a small model is too short for two threads to share: they would wait for each other longer than they
work. Two processes that do different things wait for nothing. They are forked from the one that has loaded the
model, so its weights are in memory once.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TextIO, TypeVar

T = TypeVar("T")
Work = Callable[[T, TextIO], Any]  # gets a thing and what to write to; gives what JSON can say


def can_fork() -> bool:
    """Elsewhere than on Linux libraries of the system do not survive a fork."""
    return sys.platform == "linux"


def done_beside(work: Work[T], things: Sequence[T], processes: int, say: Callable[[str], None]) -> Iterator[Any]:
    """`work(thing, out)` of each thing in so many processes, in order. What is written to `out` is said here as it
    comes, but not before what earlier things had to say. None for a thing whose process failed or was killed.

    With two processes every other thing goes to the same one, in order: what it keeps may serve the next.
    """
    workers = [_Worker(work, things[number::processes]) for number in range(processes)]
    try:
        for worker in workers:
            worker.listen()  # threads, so only after the last fork
        for number in range(len(things)):
            yield workers[number % processes].result(say)
    finally:
        for worker in workers:
            worker.end()


class _Worker:
    """One process, as seen from the other side."""

    def __init__(self, work: Work[T], things: Sequence[T]) -> None:
        self._heard, speaks = multiprocessing.Pipe(duplex=False)
        self._process = multiprocessing.get_context("fork").Process(
            target=_work, args=(work, things, speaks), daemon=True
        )
        with warnings.catch_warnings():
            # Python warns where a process with threads forks. Those of torch sleep, and the child uses none.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        speaks.close()  # before the next fork, so that the process has the only one and its end is heard
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._ended = False

    def listen(self) -> None:
        """Take what comes at once: a full pipe would hold the process up."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                self._messages.put(json.loads(self._heard.recv_bytes()))
        except (EOFError, OSError):
            self._messages.put(None)

    def result(self, say: Callable[[str], None]) -> Any:
        """The next one; None where there is none any more."""
        while not self._ended:
            message = self._messages.get()
            if message is None:
                self._ended = True
            elif "said" in message:
                say(message["said"])
            else:
                return message["done"]
        return None

    def end(self) -> None:
        """Whether it has finished or not."""
        self._process.kill()
        self._process.join()


def _work(work: Work[T], things: Sequence[T], speaks: Connection) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it ends it
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads did not come along, nor did torch's
    torch.set_num_threads(1)
    out = _Said(speaks)
    try:
        for thing in things:
            _send(speaks, done=work(thing, out))
    except Exception:
        return  # the pipe closes, which says enough


def _send(speaks: Connection, **message: Any) -> None:
    speaks.send_bytes(json.dumps(message).encode())


class _Said(io.StringIO):
    """A terminal that is seen elsewhere."""

    def __init__(self, speaks: Connection) -> None:
        super().__init__()
        self._speaks = speaks

    def isatty(self) -> bool:
        """Only to terminals something is streamed."""
        return True

    def write(self, text: str) -> int:
        """Send it at once."""
        _send(self._speaks, said=text)
        return len(text)
