"""Waking an event loop from another thread, once for many events.

A wake-up hands the interpreter over to the loop's thread. So a step, which has tokens for many clients, rings when
all of them are told, and the loop works while the inference thread waits for the device.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from weakref import WeakKeyDictionary


class _Held(threading.local):
    """Bells that this thread rings later; None: it rings at once."""

    bells: list[Bell] | None = None


class Bell:
    """Wakes an event loop once for all that was posted since it last looked."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._rung = loop, False
        self._came: deque[asyncio.Event] = deque()

    def ring(self, came: asyncio.Event) -> None:
        """From any thread: `came` is to be set."""
        self._came.append(came)
        if _held.bells is None:
            self.wake()
        elif self not in _held.bells:
            _held.bells.append(self)

    def wake(self) -> None:
        """After the loop has ended nobody listens any more."""
        if not self._rung:
            self._rung = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._rung = False  # before looking: who comes now rings again
        while self._came:
            self._came.popleft().set()


_held = _Held()
_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, Bell] = WeakKeyDictionary()


def bell_of(loop: asyncio.AbstractEventLoop) -> Bell:
    """One for each loop."""
    return _bells.setdefault(loop, Bell(loop))


@contextmanager
def rung_once() -> Iterator[None]:
    """What this thread posts inside is heard at the end."""
    outer, _held.bells = _held.bells, []
    try:
        yield
    finally:
        inner, _held.bells = _held.bells, outer
        for bell in inner:
            bell.wake()
