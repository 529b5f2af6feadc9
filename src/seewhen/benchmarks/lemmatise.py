"""From text to lemmas, in two traditions.

`nltk`: NLTK's tokenizer, tagger and WordNet, as OPERA, PAI, ONLY, SID and MemVR score CHAIR. Needs the
package and its data. `offline`: no download and no dependency. It knows the inflected forms of a given
vocabulary only, which is all that counting objects needs, and imitates what NLTK makes of them.
General lemmatizers were tried first and are worse here (`docs/benchmarks.md` has the figures): without
a tagger "potted" becomes "pot" and "dining" becomes "dine", and whole categories vanish.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

from seewhen.errors import InvalidInput, InvalidMethod, MissingDependency
from seewhen.verdicts.inflections import tokenize
from seewhen.verdicts.lexicon import Lexicon

LEMMATIZERS = ("offline", "nltk")
Lemmatizer = Callable[[str], list[str]]
Kind = Literal["noun", "verb", "other"]


@dataclass(frozen=True)
class Token:
    """A word as written, its lemma, and what kind of word it was taken for."""

    text: str
    lemma: str
    kind: Kind


def lemmatizer_named(name: str, lexicon: Lexicon) -> Lemmatizer:
    """Lower-cases a caption and gives its lemmas."""
    if name == "offline":
        forms = lexicon.forms
        return lambda text: forms.lemmas(tokenize(text.lower()))
    if name == "nltk":
        nltk = nltk_reader()
        return lambda text: [token.lemma for token in nltk(text.lower())]
    raise InvalidMethod(f"There is no lemmatizer {name!r}.", f"Use one of {', '.join(LEMMATIZERS)}.")


# --- NLTK --------------------------------------------------------------------------------------------

_NLTK_DATA = {
    "punkt_tab": "tokenizers/punkt_tab/english/",
    "averaged_perceptron_tagger_eng": "taggers/averaged_perceptron_tagger_eng/",
    "wordnet": "corpora/wordnet",
}


@cache
def nltk_reader() -> Callable[[str], tuple[Token, ...]]:
    """Tokenizer, tagger and WordNet lemmatizer of NLTK, loaded once."""
    try:
        import nltk
        from nltk.stem import WordNetLemmatizer
        from nltk.tag.perceptron import PerceptronTagger
    except ImportError:
        raise MissingDependency("nltk", "nltk") from None
    _require_nltk_data(nltk)
    tagger = PerceptronTagger(lang="eng")
    lemmatize = lru_cache(maxsize=100_000)(WordNetLemmatizer().lemmatize)

    @lru_cache(maxsize=8192)  # tagging is slow, and seeds and methods often give the same caption
    def read(text: str) -> tuple[Token, ...]:
        tagged = tagger.tag(nltk.word_tokenize(text))
        # A tag that is none of adjective, verb and adverb is looked up as a noun.
        return tuple(
            Token(word, lemmatize(word, {"J": "a", "V": "v", "R": "r"}.get(tag[:1], "n")), _kind(tag))
            for word, tag in tagged
        )

    return read


def _kind(tag: str) -> Kind:
    if tag.startswith("NN"):
        return "noun"
    return "verb" if tag.startswith("V") else "other"


def _require_nltk_data(nltk: Any) -> None:
    # NLTK reads NLTK_DATA when it is imported, which may have been before the user set it.
    for folder in os.environ.get("NLTK_DATA", "").split(os.pathsep):
        if folder and folder not in nltk.data.path:
            nltk.data.path.insert(0, folder)
    missing = []
    for name, resource in _NLTK_DATA.items():
        try:
            nltk.data.find(resource)
        except LookupError:
            try:  # corpora may also lie there as the zip archives the downloader brings
                nltk.data.find(f"corpora/{name}.zip")
            except LookupError:
                missing.append(name)
    if missing:
        raise InvalidInput(
            f"The NLTK variant needs NLTK's data, and {', '.join(missing)} is not on this machine.",
            f"Run 'python -m nltk.downloader {' '.join(missing)}', or set NLTK_DATA to the folder that has "
            "it, or use the offline lemmatizer.",
        )
