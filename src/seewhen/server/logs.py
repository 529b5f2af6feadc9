"""A log that strangers cannot fill: each kind of entry a few times a minute."""

from __future__ import annotations

import logging
import time
from collections import Counter

_LOGGERS = ("seewhen.server", "uvicorn.error", "asyncio")
_CLIENTS = ("httpx", "httpx2")  # what asks a server behind this one, and tells of each request
_OFTEN, _SECONDS, _KINDS = 10, 60.0, 200


class Sparing(logging.Filter):
    """Lets ten entries of a kind through in a minute; the next one after that says how many were left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: Counter[str] = Counter()
        self._began = time.monotonic()
        self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the entry is written."""
        if time.monotonic() - self._began > _SECONDS:
            self._seen.clear()
            self._began = time.monotonic()
        kind = str(record.msg)[:30]  # asyncio writes values into its messages; they begin alike
        if len(self._seen) >= _KINDS and kind not in self._seen:
            kind = ""
        self._seen[kind] += 1
        if self._seen[kind] > _OFTEN:
            self._left_out += 1
            return False
        if self._left_out:
            record.msg = f"{record.msg} [{self._left_out} entries before this one were left out]"
            self._left_out = 0
        return True


def limit_logs() -> None:
    """For the loggers of a server process."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(Sparing())
    for name in _CLIENTS:
        if not logging.getLogger().isEnabledFor(logging.DEBUG):
            logging.getLogger(name).setLevel(logging.WARNING)
