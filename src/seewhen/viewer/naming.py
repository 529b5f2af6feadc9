"""Which words of an answer name an object, and whether the picture shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from seewhen.bench.chair import CaptionReader


@dataclass(frozen=True)
class Named:
    """An object that words `start` to `end` (exclusive) of an answer name."""

    start: int
    end: int
    name: str
    present: bool


@cache
def _reader() -> CaptionReader:
    return CaptionReader()


def named_objects(words: Sequence[str], truth: Collection[str]) -> list[Named]:
    """CHAIR's reading of the whole answer, with the place of each object it finds."""
    reader = _reader()
    expected = list(reader.objects("".join(words)))
    found: list[Named] = []
    at = 0
    while at < len(words) and expected:
        name = expected[0]
        one = reader.objects(words[at])
        two = reader.objects("".join(words[at : at + 2]))
        after = reader.objects(words[at + 1]) if at + 1 < len(words) else ()
        # "hot dog" is one object that neither word alone stands for; in "a dog" the second word does.
        length = 2 if two == (name,) and two not in (one, after) else 1 if one == (name,) else 0
        if length:
            found.append(Named(at, at + length, name, name in truth))
            expected.pop(0)
        at += length or 1
    return found
