"""What may not be said about a denied object: its words in every spelling, and how they begin.

Forbidding a word's last piece alone lets a model begin it and go on with anything: "fris" + "bee" becomes
"frisbeard", "dining table" becomes "diningtable", which nobody reads as an object. So a word may not even be
begun, unless another object's word begins alike ("baseball bat" and "baseball glove"), and joined, hyphenated and
split spellings count as the word itself.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from seewhen.verdicts.inflections import participles, plurals
from seewhen.verdicts.lexicon import Lexicon, english

_BEGUN = 3  # letters; a shorter beginning says nothing
MOST_SPELLINGS = 400  # of one object: "person" has dozens of synonyms


# How an object's words may have begun -> what can come next -> other objects with a word that begins so.
Continued = dict[str, dict[str, frozenset[str]]]
# How a text ends: whether a word may begin right there (at its start, after a sign), and the beginnings of denied
# words that it ends with.
Begun = tuple[bool, tuple[str, ...]]


@dataclass(frozen=True)
class Forbidden:
    """The words of a lexicon as a text must not hold them once their object is denied."""

    lexicon: Lexicon
    _spelled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _continued: dict[str, Continued] = field(default_factory=dict)

    def spellings(self, name: str) -> tuple[str, ...]:
        """An object's words in small letters: synonyms, inflected, joined, hyphenated and split."""
        if name not in self._spelled:
            terms = (name, *self.lexicon.synonyms.get(name, ()), *self.lexicon.variants.get(name, ()))
            found = dict.fromkeys(form for term in terms for form in (term, *self._inflected(term)))
            self._spelled[name] = tuple(found)[:MOST_SPELLINGS]
        return self._spelled[name]

    def _inflected(self, term: str) -> Iterator[str]:
        if not self.lexicon.is_english:
            return
        yield from plurals(term)
        yield from (form for form, word in self.lexicon.irregular.items() if word == term)
        if term in self.lexicon.verbs:
            yield from participles(term)

    @cached_property
    def _all(self) -> list[tuple[str, str]]:
        """Every spelling of every object, in order."""
        return sorted((form, name) for name in self.lexicon.objects for form in self.spellings(name))

    @cached_property
    def _longest(self) -> int:
        return max((len(form) for form, _ in self._all), default=1)

    def begun(self, denied: frozenset[str], before: str) -> Begun:
        """All of a text that matters for what may not follow it."""
        near = before.lower()[-self._longest - 1 :]
        places = range(max(len(near) - self._longest, 0), len(near))
        starts = (place for place in places if not place or not near[place - 1].isalnum())
        tails = (near[place:] for place in starts)
        words = tuple(tail for tail in tails if any(tail in self._after(name) for name in denied))
        return not near or not near[-1].isalnum(), words

    def pieces(self, denied: Collection[str], before: str) -> set[str]:
        """What may not follow the text `before`, in small letters: with it a word of a denied object would be
        complete, or begun as no other object's word begins."""
        names = frozenset(denied)
        return self.following(names, self.begun(names, before))

    def following(self, denied: frozenset[str], begun: Begun) -> set[str]:
        """The same for any text with these ends."""
        fresh, words = begun
        found = set[str]()
        for name in denied:
            continued = self._after(name)
            first = _unshared(continued.get("", {}), denied)
            found.update(f" {piece}" for piece in first)
            if fresh:
                found.update(first)
            for word in words:
                found.update(_unshared(continued.get(word, {}), denied))
        return found

    def _after(self, name: str) -> Continued:
        """Of one object; made once."""
        if name not in self._continued:
            found: Continued = {}
            for form in self.spellings(name):
                begun = ((end, self._begun(form[:end], name)) for end in range(1, len(form)))
                ends = {end: others for end, others in begun if others is not None}
                for said in range(len(form)):
                    rest = found.setdefault(form[:said], {})
                    rest.update({form[said:end]: others for end, others in ends.items() if end > said})
            for form in self.spellings(name):  # a whole word is the object's, whoever begins alike
                for said in range(len(form)):
                    found[form[:said]][form[said:]] = frozenset()
            self._continued[name] = found
        return self._continued[name]

    def _begun(self, start: str, name: str) -> frozenset[str] | None:
        """The other objects with a word that begins with these letters; None if they say too little."""
        if sum(map(str.isalpha, start)) < _BEGUN or not start[-1].isalpha() or start in english("whole"):
            return None
        others, place = set[str](), bisect_left(self._all, (start, ""))
        while place < len(self._all) and self._all[place][0].startswith(start):
            others.add(self._all[place][1])
            place += 1
        return frozenset(others - {name})


def _unshared(continued: dict[str, frozenset[str]], denied: frozenset[str]) -> list[str]:
    """What says a denied object and no other."""
    return [piece for piece, others in continued.items() if others <= denied]
