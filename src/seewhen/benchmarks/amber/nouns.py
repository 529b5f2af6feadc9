"""The nouns of a description, for AMBER: by NLTK's tagger as published, or offline by a short rule."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from seewhen.benchmarks.lemmatise import LEMMATIZERS, nltk_reader
from seewhen.errors import InvalidMethod
from seewhen.verdicts.inflections import Inflections, tokenize

# After one of these a word that could be both is a verb: "to watch", "they drink", "can light".
_BEFORE_VERB = frozenset(
    re.findall(
        r"\S+",
        "to i you he she it we they who which that can could may might must shall should will would not n't",
    )
)
# Words of AMBER's list that are hardly ever nouns in a description ("can be seen", "hot dog").
_RARELY_NOUN = frozenset(("can", "hot", "leave"))

_IRREGULAR = {
    "men": "men",  # WordNet takes "men" for a word of its own, so the published scorer never sees a man in it
    "women": "woman",
    "children": "child",
    "mice": "mouse",
    "geese": "goose",
    "leaves": "leaf",
}


@dataclass(frozen=True)
class NounReader:
    """Lemmas of the nouns of a text, in order. Upper case is kept, as in the published scorer."""

    lemmatizer: str
    known: Iterable[str]

    @cached_property
    def _forms(self) -> Inflections:
        return Inflections.of(self.known, irregular=_IRREGULAR)

    def nouns(self, text: str) -> list[str]:
        if self.lemmatizer == "nltk":
            return [token.lemma for token in nltk_reader()(text) if token.kind == "noun"]
        if self.lemmatizer != "offline":
            raise InvalidMethod(
                f"There is no lemmatizer {self.lemmatizer!r}.", f"Use one of {', '.join(LEMMATIZERS)}."
            )
        words = tokenize(text)
        before = ["", *(word.lower() for word in words)]
        lemmas = self._forms.lemmas(words)
        return [lemma for lemma, last in zip(lemmas, before, strict=False) if _is_noun(lemma, last)]


def _is_noun(lemma: str, before: str) -> bool:
    return before not in _BEFORE_VERB and lemma not in _RARELY_NOUN
