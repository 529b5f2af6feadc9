"""From text to lemmas, in two traditions.

`nltk`: NLTK's tokenizer, tagger and WordNet, as OPERA, PAI, ONLY, SID and MemVR score CHAIR. Needs the
package and its data. `offline`: no download and no dependency. It knows the inflected forms of a given
vocabulary only, which is all that counting objects needs, and imitates what NLTK makes of them.
General lemmatizers were tried first and are worse here (`docs/benchmarks.md` has the figures): without
a tagger "potted" becomes "pot" and "dining" becomes "dine", and whole categories vanish.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, Literal

from seewhen.bench.lexicon import Lexicon
from seewhen.errors import InvalidInput, InvalidMethod, MissingDependency

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
        forms = Inflections.of(lexicon.words, lexicon.verbs, lexicon.irregular, lexicon.kept)
        return lambda text: forms.lemmas(tokenize(text.lower()))
    if name == "nltk":
        nltk = nltk_reader()
        return lambda text: [token.lemma for token in nltk(text.lower())]
    raise InvalidMethod(f"There is no lemmatizer {name!r}.", f"Use one of {', '.join(LEMMATIZERS)}.")


# --- offline -----------------------------------------------------------------------------------------

# As the Penn Treebank does: "isn't" -> "is" "n't", "man's" -> "man" "'s", "close-up" stays whole.
_TOKEN = re.compile(
    r"""\d+(?:[.,:/]\d+)*[a-z]*      # 12, 3.5, 10:30, 2nd
    | [^\W\d_]+(?=n't\b) | n't\b     # is|n't
    | '(?:s|re|ve|ll|d|m)\b          # man|'s
    | \w+(?:[-/.]\w+)*               # words, with inner hyphens
    | \.{2,} | -- | [^\w\s]          # ellipsis, dash, any other sign
    """,
    re.VERBOSE | re.IGNORECASE,
)

# After one of these an "-ing" form names a thing ("the seating area"), elsewhere an action.
_OPENS_NOUN = frozenset(
    [
        "a",
        "an",
        "the",
        "his",
        "her",
        "their",
        "its",
        "my",
        "our",
        "your",
        "'s",
        "some",
        "any",
        "more",
        "own",
        "ample",
        "popular",
        "additional",
        "another",
    ]
)
_ADJECTIVE = re.compile(r"\w(?:able|ible|ive|al|ous|ful|ly)$")


def tokenize(text: str) -> list[str]:
    """Words and punctuation marks."""
    return _TOKEN.findall(text)


@dataclass(frozen=True)
class Inflections:
    """The inflected forms of a vocabulary, each with the word it comes from."""

    nouns: Mapping[str, str]
    verbs: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        words: Iterable[str],
        verbs: Iterable[str] = (),
        irregular: Mapping[str, str] | None = None,
        kept: Iterable[str] = (),
    ) -> Inflections:
        """Generates the regular forms; a form that is itself a word of the vocabulary stays as it is."""
        words = set(words)
        fixed = words | set(kept)
        nouns = {form: word for word in sorted(words) for form in plurals(word)}
        nouns.update(irregular or {})
        actions = {form: word for word in sorted(verbs) for form in participles(word)}
        return Inflections(
            {form: word for form, word in nouns.items() if form not in fixed},
            {form: word for form, word in actions.items() if form not in fixed},
        )

    def lemmas(self, tokens: list[str]) -> list[str]:
        """The lemma of each token; a token that is no known form is its own lemma."""
        return [self._lemma(word, tokens[place - 1] if place else "") for place, word in enumerate(tokens)]

    def _lemma(self, word: str, before: str) -> str:
        if word in self.nouns:
            return self.nouns[word]
        if word not in self.verbs:
            return word
        names_a_thing = word.endswith("ing") and (before in _OPENS_NOUN or _ADJECTIVE.search(before))
        return word if names_a_thing else self.verbs[word]


def plurals(noun: str) -> tuple[str, ...]:
    """Regular plurals; where English has two habits, both."""
    if re.search(r"(?:s|x|z|ch|sh)$", noun):
        return (noun + "es",)
    if re.search(r"[^aeiou]y$", noun):
        return (noun[:-1] + "ies", noun + "s")
    if noun.endswith("o"):
        return (noun + "s", noun + "es")
    if re.search(r"[^f]fe?$", noun):
        return (noun.rstrip("e")[:-1] + "ves", noun + "s")
    return (noun + "s",)


def participles(verb: str) -> tuple[str, ...]:
    """Regular -ed and -ing forms."""
    if verb.endswith("ie"):  # tie -> tied, tying
        return (verb + "d", verb[:-2] + "ying")
    if verb.endswith("e"):
        return (verb + "d", verb[:-1] + "ing")
    if re.search(r"[^aeiou]y$", verb):
        return (verb[:-1] + "ied", verb + "ing")
    if re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", verb):  # ship -> shipped
        return (verb + verb[-1] + "ed", verb + verb[-1] + "ing")
    return (verb + "ed", verb + "ing")


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
