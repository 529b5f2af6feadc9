"""Where the time of a server's inference thread goes: reading prompts, starting steps, waiting for the device,
telling clients. Looked at from outside, by timers around what the server calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from seewhen.decoding.fast.lane import Lane
from seewhen.server.company import Company
from seewhen.server.engine import Engine


class Watched:
    """Seconds of one thread by what it does. A timer inside another stops the outer one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seconds: dict[str, float] = {}
        self.counts = {"prompts": 0, "passes": 0, "steps": 0, "rows": 0}
        self._open: list[tuple[str, float]] = []
        self._began, self._clocks = time.perf_counter(), _clocks()

    def reset(self) -> None:
        """Begin to count."""
        self.seconds, self.counts = {}, dict.fromkeys(self.counts, 0)
        self._began, self._clocks = time.perf_counter(), _clocks()

    def found(self) -> dict[str, Any]:
        """Shares of the time since then, counts, and what each thread computed."""
        whole = time.perf_counter() - self._began
        shares = {name: seconds / whole for name, seconds in list(self.seconds.items())}
        shares["the rest"] = 1 - sum(shares.values())
        counts = self.counts
        return {
            "shares": {name: round(share, 4) for name, share in shares.items()},
            **counts,
            "rows_per_step": counts["rows"] / max(counts["steps"], 1),
            "ms_per_pass_on_the_host": 1000 * self.seconds.get("reading", 0.0) / max(counts["passes"], 1),
            "ms_between_steps": 1000 * whole / max(counts["steps"], 1),
            "cpu_shares": {
                name: round((now - self._clocks.get(name, 0.0)) / whole, 4) for name, now in _clocks().items()
            },
        }

    def _timed(
        self, name: str, stock: Callable[..., Any], count: Callable[..., None] | None
    ) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self.engine.thread_id:
                return stock(*args, **kwargs)
            if count is not None:
                count(*args)
            self._enter(name)
            try:
                return stock(*args, **kwargs)
            finally:
                self._leave()

        return call

    def _enter(self, name: str) -> None:
        now = time.perf_counter()
        if self._open:
            self._add(self._open[-1], now)
        self._open.append((name, now))

    def _leave(self) -> None:
        now = time.perf_counter()
        self._add(self._open.pop(), now)
        if self._open:
            self._open[-1] = (self._open[-1][0], now)

    def _add(self, timer: tuple[str, float], now: float) -> None:
        name, since = timer
        self.seconds[name] = self.seconds.get(name, 0.0) + now - max(since, self._began)

    def read(self, company: Company, prompt: Any) -> None:
        """A pass over prompts."""
        self.counts["passes"] += 1
        self.counts["prompts"] += len(prompt.jobs)

    def stepped(self, lane: Lane) -> None:
        """A step."""
        self.counts["steps"] += 1
        self.counts["rows"] += lane.busy


@contextmanager
def watched(engine: Engine) -> Iterator[Watched]:
    """Timers on for the time of the context."""
    watch = Watched(engine)
    places: list[tuple[Any, str, str, Callable[..., None] | None]] = [
        (Company, "prompt", "putting prompts together", None),
        (Company, "join", "reading", watch.read),
        (Lane, "advance", "starting steps", watch.stepped),
        (Company, "_take", "telling", None),
        (Engine, "_next", "queue, or nothing to do", None),
    ]
    if torch.cuda.is_available():
        places.append((torch.cuda.Event, "synchronize", "waiting for the device", None))
    with ExitStack() as stack:
        for owner, attribute, name, count in places:
            stock = getattr(owner, attribute)
            stack.callback(setattr, owner, attribute, stock)
            setattr(owner, attribute, watch._timed(name, stock, count))
        yield watch


def _clocks() -> dict[str, float]:
    """Seconds that each thread has computed."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None and not thread.name.startswith(("asyncio_", "asyncio-")):
            name = "event loop" if thread.name == "server" else thread.name
            found[name] = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return found
