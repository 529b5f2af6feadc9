"""What AMBER knows about words: which are related, and which never count as hallucinated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from seewhen.benchmarks.amber.vectors import WordVectors


@dataclass(frozen=True)
class Words:
    """AMBER's two word lists."""

    related: Mapping[str, tuple[str, ...]]
    safe: frozenset[str]

    @cached_property
    def known(self) -> frozenset[str]:
        """Only these nouns are looked at."""
        return frozenset(self.related).union(*self.related.values())

    def first_match(self, noun: str, annotated: Sequence[str]) -> int | None:
        """Which annotated object a noun stands for. As published, words *related* to an object are
        looked through before the objects themselves, so "ground" may be booked on "grass"."""
        for place, word in enumerate(annotated):
            if noun in self.related.get(word, ()):
                return place
        return annotated.index(noun) if noun in annotated else None

    def first_alike(self, noun: str, annotated: Sequence[str], vectors: WordVectors) -> int | None:
        """The same by vectors, in the same order."""
        for place, word in enumerate(annotated):
            if any(vectors.alike(noun, other) for other in self.related.get(word, ())):
                return place
        return next((place for place, word in enumerate(annotated) if vectors.alike(noun, word)), None)
