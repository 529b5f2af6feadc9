"""Progress of a run: a bar with rate and time left on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_EVERY = 10.0  # seconds between plain lines


def duration(seconds: float) -> str:
    """12s, 3m05s, 2h07m."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


class Progress:
    """Counts samples; `already` of them were done before and do not count towards the rate."""

    def __init__(self, title: str, total: int, already: int = 0, stream: TextIO | None = None) -> None:
        self._title, self._total, self._already, self._done = title, total, already, already
        self._stream = stream or sys.stderr
        self._started = self._last = time.monotonic()
        self._bar = None
        if self._stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[pace]}"),
                console=Console(file=self._stream),
            )
            self._task = self._bar.add_task(title, total=total, completed=already, pace="")

    def __enter__(self) -> Progress:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        if self._bar:
            self._bar.stop()
        elif self._done > self._already:
            self._line()

    def skip(self, samples: int) -> None:
        """More that was done before."""
        self._already += samples
        self._done += samples

    def advance(self, samples: int) -> None:
        self._done += samples
        if self._bar:
            self._bar.update(self._task, completed=self._done, pace=self.pace())
        elif time.monotonic() - self._last >= _EVERY and self._done < self._total:
            self._line()

    def pace(self) -> str:
        """Rate and time left."""
        new = self._done - self._already
        seconds = time.monotonic() - self._started
        if not new or seconds <= 0:
            return ""
        rate = new / seconds
        left = (self._total - self._done) / rate
        return f"{rate:.1f}/s, " + (f"{duration(left)} left" if left else f"took {duration(seconds)}")

    def _line(self) -> None:
        share = 100 * self._done / self._total if self._total else 100.0
        print(
            f"{self._title}: {self._done}/{self._total} ({share:.0f}%) {self.pace()}",
            file=self._stream,
            flush=True,
        )
        self._last = time.monotonic()
