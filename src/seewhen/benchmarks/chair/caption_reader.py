"""From a caption to the objects it mentions, by CHAIR's rules."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from seewhen.benchmarks.lemmatise import Lemmatizer, lemmatizer_named
from seewhen.verdicts.lexicon import Lexicon, chair_lexicon
from seewhen.verdicts.reader import merged

_GLUED = re.compile(r"(?<=[a-z][.!?])(?=[A-Z])")  # some models leave out the space: "a pair of skis.The man"


def sentences_apart(caption: str) -> str:
    """A space between glued sentences, without which neither lemmatizer finds the words there."""
    return _GLUED.sub(" ", caption)


def sentences(caption: str) -> list[str]:
    """What ends with . ! or ?, and what is left at the end."""
    return re.split(r"(?<=[.!?])\s+", sentences_apart(caption).strip())


@dataclass(frozen=True)
class Mentions:
    """What CHAIR sees in a caption: objects in order, repetitions kept, and how long it is.

    `tokens` is the published scorer's length: punctuation counts, two words for one object are one."""

    objects: tuple[str, ...]
    tokens: int
    words: int


@dataclass(frozen=True)
class CaptionReader:
    """From a caption to the objects it mentions."""

    lemmatizer: str = "offline"
    lexicon: Lexicon = field(default_factory=chair_lexicon)

    @cached_property
    def _lemmas(self) -> Lemmatizer:
        return lemmatizer_named(self.lemmatizer, self.lexicon)

    def read(self, caption: str) -> Mentions:
        caption = sentences_apart(caption)
        pairs = self.lexicon.pairs
        lemmas = [term for term, _, _ in merged(self._lemmas(caption), pairs, self.lexicon.longest)]
        node = self.lexicon.node
        # the seat of a toilet is not a chair
        objects = [node[w] for w in lemmas if w in node and not (w == "seat" and "toilet" in lemmas)]
        words = sum(any(map(str.isalnum, word)) for word in caption.split())
        return Mentions(tuple(objects), len(lemmas), words)

    def objects(self, caption: str) -> tuple[str, ...]:
        """The objects alone."""
        return self.read(caption).objects
