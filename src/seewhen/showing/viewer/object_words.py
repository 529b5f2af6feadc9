"""Which words of an answer name an object, whether the picture shows it, and what the model says when asked."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

from seewhen.benchmarks.chair.caption_reader import CaptionReader


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


class Verdicts:
    """What a method that asks (`confirm`) tells of an answer, with words in place of characters."""

    def __init__(self, words: Sequence[str], told: Mapping[str, Any]) -> None:
        # Places are those of the answer without the space before it.
        lead = len("".join(words)) - len("".join(words).lstrip())
        self._ends = [end - lead for end in accumulate(len(word) for word in words)]
        self._told = told

    def of_words(self) -> dict[int, dict[str, Any]]:
        """The verdict of each word that names an object."""
        found: dict[int, dict[str, Any]] = {}
        for verdict in self._told["verdicts"]:
            known = {name: verdict.get(name) for name in ("object", "verdict", "odds", "probability")}
            known |= {name: verdict[name] for name in ("own", "elsewhere") if name in verdict}
            first, last = bisect_right(self._ends, verdict["start"]), bisect_left(self._ends, verdict["end"])
            found |= dict.fromkeys(range(first, min(last + 1, len(self._ends))), known)
        return found

    def summary(self) -> dict[str, Any]:
        """What was asked and taken back; each sentence taken back with the word before which it stood."""
        back = [
            {"text": said["text"], "before": bisect_right(self._ends, said["after"]), "denied": said["denied"]}
            for said in self._told["taken_back"]
        ]
        known = ("asked", "steps", "tokens", "later")
        return {**{name: self._told[name] for name in known if name in self._told}, "taken_back": back}


def marked(
    words: Sequence[dict[str, Any]], truth: Collection[str] | None, told: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Say of each word which object it names and what was asked about it; returns what was asked in all."""
    texts = [word["text"] for word in words]
    for named in [] if truth is None else named_objects(texts, truth):
        for word in words[named.start : named.end]:
            word["object"], word["present"] = named.name, named.present
    if told is None:
        return None
    verdicts = Verdicts(texts, told)
    for number, verdict in verdicts.of_words().items():
        words[number]["asked"] = verdict
    return verdicts.summary()
