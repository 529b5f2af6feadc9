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
_MOST_KNOWN = 64  # sets of denied objects that are remembered


@dataclass(frozen=True)
class Forbidden:
    """The words of a lexicon as a text must not hold them once their object is denied."""

    lexicon: Lexicon
    _spelled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _known: dict[frozenset[str], dict[str, set[str]]] = field(default_factory=dict)

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

    def pieces(self, denied: Collection[str], before: str) -> set[str]:
        """What may not follow the text `before`, in small letters: with it a word of a denied object would be
        complete, or begun as no other object's word begins."""
        after = self._after(frozenset(denied))
        tail = before[-max(map(len, after), default=0) :].lower()
        first = {f" {piece}" for piece in after.get("", ())}
        if not tail or not tail[-1].isalnum():  # at the start, or after a sign
            first |= after.get("", set())
        begins = (place for place in range(len(tail)) if not place or not tail[place - 1].isalnum())
        return first.union(*(after.get(tail[place:], set()) for place in begins))

    def _after(self, denied: frozenset[str]) -> dict[str, set[str]]:
        """How each word may have begun -> what may not come next."""
        if denied not in self._known:
            found: dict[str, set[str]] = {}
            for form in (form for name in denied for form in self.spellings(name)):
                ends = [end for end in range(1, len(form)) if self._is_begun(form[:end], denied)]
                for said in range(len(form)):
                    rest = {form[said:end] for end in (*ends, len(form)) if end > said}
                    found.setdefault(form[:said], set()).update(rest)
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[denied] = found
        return self._known[denied]

    def _is_begun(self, start: str, denied: Collection[str]) -> bool:
        """Whether these letters can only become a word of a denied object."""
        if sum(map(str.isalpha, start)) < _BEGUN or not start[-1].isalpha() or start in english("whole"):
            return False
        place = bisect_left(self._all, (start, ""))
        while place < len(self._all) and self._all[place][0].startswith(start):
            if self._all[place][1] not in denied:
                return False
            place += 1
        return True
