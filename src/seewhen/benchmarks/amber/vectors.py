"""Words that mean nearly the same, by the word vectors of an installed spaCy model, as AMBER's own scorer does."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

from seewhen.errors import InvalidInput, InvalidMethod, MissingDependency

RELATED = "related"  # the default: no vectors, only the words AMBER lists as related
MODEL = "en_core_web_lg"  # the published one
ALIKE = 0.8


@dataclass(frozen=True)
class WordVectors:
    """Vectors of a spaCy model; two words are alike above a cosine of 0.8."""

    name: str
    nlp: Any
    _docs: dict[str, Any] = field(default_factory=dict, repr=False)
    _known: dict[tuple[str, str], bool] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, similarity: str) -> WordVectors:
        """From "spacy" or "spacy:MODEL", a model's name or directory."""
        kind, _, model = similarity.partition(":")
        if kind != "spacy":
            raise InvalidMethod(
                f"There is no similarity {similarity!r}.",
                f"Use {RELATED}, spacy, or spacy:MODEL (a name or folder).",
            )
        try:
            import spacy
        except ImportError:
            raise MissingDependency("spacy", "amber") from None
        model = model or MODEL
        try:
            nlp = spacy.load(model)
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"spaCy cannot load {model!r}: {str(error).splitlines()[0]}",
                f"Get it with `python -m spacy download {MODEL}`, or give --similarity spacy:FOLDER.",
            ) from None
        if not nlp.vocab.vectors.n_keys:
            raise InvalidInput(f"The spaCy model {model!r} has no word vectors.", f"Use {MODEL}.")
        meta = nlp.meta
        return cls(f"spacy {meta.get('lang')}_{meta.get('name')} {meta.get('version')} > {ALIKE}", nlp)

    def alike(self, one: str, other: str) -> bool:
        """Whether their similarity is above the published 0.8."""
        pair = (one, other)
        if pair not in self._known:
            with warnings.catch_warnings():
                # A word without a vector is like no other; spaCy warns each time.
                warnings.filterwarnings("ignore", message=r"\[W008\]")
                self._known[pair] = float(self._doc(one).similarity(self._doc(other))) > ALIKE
        return self._known[pair]

    def _doc(self, word: str) -> Any:
        # Vectors need no tagger or parser, so only the tokenizer runs; the similarity is the same.
        if word not in self._docs:
            self._docs[word] = self.nlp.make_doc(word)
        return self._docs[word]
