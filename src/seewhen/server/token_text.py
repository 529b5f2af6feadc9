"""From tokens to text as it can be sent: whole characters only, nothing that may yet become a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

_CONTEXT = 8  # tokens before one that decide how it is spelled


class TextWriter:
    """The text of one answer, growing. What `add` and `end` return, joined, is the answer, stripped."""

    def __init__(
        self, tokenizer: Any, stops: Sequence[str] = (), before: Sequence[int] = (), keeps_stop: bool = False
    ) -> None:
        """`before` are tokens that it goes on from; `keeps_stop` leaves the stop string in the text."""
        self._tokenizer, self._stops, self._keeps_stop = tokenizer, tuple(stops), keeps_stop
        # Where nobody has changed it, `decode` adds nothing to `_decode` but looking for tensors in lists.
        stock = type(tokenizer).decode is PreTrainedTokenizerBase.decode
        self._spell = tokenizer._decode if stock else tokenizer.decode
        self._ids, self._goes_on = list(before[-_CONTEXT:]), bool(before)
        # Tokens up to `_read` are in the text. Decoding starts a little before them, at `_start`, because a
        # tokenizer may write the first token of a text differently (without its space).
        self._start, self._read, self._before = 0, len(self._ids), self._decode(self._ids)
        self._text, self._sent = "", 0
        self.stopped: str | None = None  # the stop string that was met

    @property
    def text(self) -> str:
        """What was sent so far."""
        return self._text[: self._sent]

    def add(self, token: int) -> str:
        """Take a token; returns the text that is now certain."""
        self._ids.append(token)
        after = self._decode(self._ids[self._start :])
        if len(after) > len(self._before) and not after.endswith("\ufffd"):
            self._grow(after[len(self._before) :])
            self._start, self._read = self._read, len(self._ids)
            self._before = self._decode(self._ids[self._start : self._read])
        return self._send(self._safe_end())

    def end(self) -> str:
        """No token follows: the rest of the text."""
        if self.stopped is None:
            self._grow(self._decode(self._ids[self._start :])[len(self._before) :])
        return self._send(len(self._text.rstrip()))

    def spelled(self, token: int) -> str:
        """How a token would stand in the text if it came next. Alone, many a tokenizer leaves out its space."""
        context = self._ids[-_CONTEXT:]
        plain, longer = (
            self._tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in (context, [*context, token])
        )
        return str(longer)[len(plain) :]

    def _decode(self, ids: list[int]) -> str:
        return str(self._spell(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def _grow(self, fresh: str) -> None:
        if self.stopped is not None:
            return
        self._text += fresh
        if self._sent == 0 and not self._goes_on:
            self._text = self._text.lstrip()
        # Text that was sent holds no part of a stop string, so the search starts there.
        found = [(place, stop) for stop in self._stops if (place := self._text.find(stop, self._sent)) >= 0]
        if found:
            place, self.stopped = min(found)
            self._text = self._text[: place + (len(self.stopped) if self._keeps_stop else 0)]

    def _safe_end(self) -> int:
        end = len(self._text)
        if self.stopped is None:
            end -= max((_overlap(self._text[self._sent :], stop) for stop in self._stops), default=0)
        return len(self._text[:end].rstrip())  # spaces at the very end are not part of an answer

    def _send(self, end: int) -> str:
        fresh, self._sent = self._text[self._sent : end], max(end, self._sent)
        return fresh


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
