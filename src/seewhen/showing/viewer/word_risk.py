"""Words and their risk: tokens put together to what a reader sees as one word."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

LEVELS = ("sure", "some doubt", "unsure", "guessing")
# Words that say nothing about a picture; as SMALL in assets/data.js.
_SMALL = """
    a an the this that these those and or but as at by for from in into of on onto to with
    is are was were be been being am do does did has have had having can could may might will would
    i it its he him his she her hers they them their there here we us our you your who which what
    also too well while
"""
SMALL = frozenset(_SMALL.split())


@dataclass(frozen=True)
class Word:
    """A run of tokens: `text` keeps its leading space; tokens `start` to `end` (exclusive)."""

    text: str
    start: int
    end: int


def risk(entropy: float | None) -> float | None:
    """Entropy (nats) as a number between 0 and 1: `1 - exp(-H)`.

    exp(H) is how many equally likely choices the distribution amounts to, so a toss-up between two
    words has risk 0.5, between ten 0.9. Needs no scale that depends on the vocabulary.
    """
    if entropy is None or math.isnan(entropy):
        return None
    return 1.0 - math.exp(-max(entropy, 0.0))


def level(value: float | None) -> int:
    """The number in LEVELS of a risk; 0 where it is not known."""
    if value is None:
        return 0
    return min(int(value * len(LEVELS)), len(LEVELS) - 1)


def group(texts: Sequence[str]) -> list[Word]:
    """Tokens put together to words. Punctuation stands alone, so that its risk is not the word's."""
    words: list[Word] = []
    for index, text in enumerate(texts):
        if words and not _starts_word(words[-1].text, text):
            last = words[-1]
            words[-1] = Word(last.text + text, last.start, index + 1)
        else:
            words.append(Word(text, index, index + 1))
    return words


def _starts_word(before: str, text: str) -> bool:
    if not text or not before.strip():
        return bool(text.strip()) and not before.strip()
    if text[0].isspace() or before[-1].isspace():
        return True
    return _is_mark(text) != _is_mark(before)


def _is_mark(text: str) -> bool:
    return not re.search(r"\w", text)


def word_risk(word: Word, risks: Sequence[float | None]) -> float | None:
    """The highest risk of a word's tokens."""
    known = [value for value in risks[word.start : word.end] if value is not None]
    return max(known, default=None)


def differing(first: Sequence[str], second: Sequence[str]) -> frozenset[int]:
    """Which words of `second` tell something that `first` does not say anywhere."""
    said = {text.strip().lower() for text in first}
    bare = [text.strip().lower() for text in second]
    return frozenset(
        number for number, text in enumerate(bare) if text not in said and text not in SMALL and not _is_mark(text)
    )
