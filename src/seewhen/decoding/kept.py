"""What is costly to make and used again by later calls, one call at a time."""

from __future__ import annotations

from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")
_MOST = 4


class Kept(Generic[T]):
    """Things between calls. A call takes one out while it uses it, so that no two calls ever share one."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: list[tuple[Hashable, T]] = []

    def take(self, key: Hashable) -> T | None:
        """The newest with this key, which is now the caller's alone."""
        with self._lock:
            place = next((n for n in reversed(range(len(self._kept))) if self._kept[n][0] == key), None)
            return None if place is None else self._kept.pop(place)[1]

    def put(self, key: Hashable, thing: T) -> None:
        """Keep what a call has finished with; the oldest beyond the limit goes."""
        with self._lock:
            self._kept.append((key, thing))
            del self._kept[:-_MOST]

    @property
    def all(self) -> list[T]:
        """What lies here now."""
        return [thing for _, thing in self._kept]
