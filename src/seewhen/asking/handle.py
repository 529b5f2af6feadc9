"""What a script holds of an attached method: its summary, its trace and its page."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from seewhen.decoding.method import Method
from seewhen.decoding.session import Session
from seewhen.decoding.trace import Trace
from seewhen.errors import UnsupportedMode


class Handle:
    """What `attach` gives: the method, and what happened in the last `generate` call.

    Examples:
        >>> with seewhen.attach(model, "cai", trace=True) as handle:
        ...     output = model.generate(**inputs)
        >>> print(handle.summary())
        >>> handle.page("page.html")
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._own = threading.local()  # of each thread; a thread that made no call sees the newest of all
        self._newest: _Made | None = None

    @property
    def method(self) -> Method:
        """The attached method."""
        return self.session.method

    @property
    def _made(self) -> _Made | None:
        return getattr(self._own, "made", None) or self._newest

    @property
    def trace(self) -> Trace:
        """What happened in this thread's last `generate` call; in a thread that made none, in the newest."""
        made = self._made
        if made is None:
            raise UnsupportedMode("There is no trace yet.", "Call model.generate(...) first.")
        if made.trace is None:
            raise UnsupportedMode(
                f"The last call has no trace: {self.method.name} has a decoding loop of its own.",
                "Use another method to see one.",
            )
        return made.trace

    def summary(self) -> str:
        """What the method did in the last call, in a few lines: `Trace.summary`.

        Returns:
            The method and the number of tokens, what it does or why it did nothing, and what was counted.
        """
        if self._made is not None and self._made.trace is None:
            return f"{self.method.name}: {self.method.in_words()}\nits decoding loop keeps no trace"
        return self.trace.summary()

    def page(self, path: str | Path, *, image: Any = None, processor: Any = None) -> Path:
        """Write one self-contained HTML page of the last call: each word, how sure the model was, where it looked.

        Attach with `trace=True` for the maps. Words are read with the processor that lies beside the model's
        weights, and the picture is taken from the pixels that the model was given.

        Args:
            path: The file to write.
            image: The picture, or a list with those of all rows, to show in place of the pixels.
            processor: The model's processor or tokenizer, where it cannot be found beside the weights.

        Returns:
            The path.
        """
        trace = self.trace
        if processor is not None and trace.completing is not None:
            trace = dataclasses.replace(trace, completing=functools.partial(trace.completing, processor=processor))
        return trace.page(path, image=image)

    def __repr__(self) -> str:
        return f"Handle({self.method.name}, {'no call yet' if self._made is None else 'a call was made'})"

    def _finished(self, make: Callable[[], Trace] | None) -> None:
        self._own.made = self._newest = _Made(make)


class _Made:
    """A trace, brought to the host when somebody asks for it; None of a loop that keeps none."""

    def __init__(self, make: Callable[[], Trace] | None) -> None:
        self._make = make

    @functools.cached_property
    def trace(self) -> Trace | None:
        return None if self._make is None else self._make()
