"""Words of a text and their base forms, without a tagger: the inflected forms of a given vocabulary."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

# As NLTK does: a few signs stand alone, everything else between spaces is one word, whatever it is made of:
# "isn't" -> "is" "n't", "man's" -> "man" "'s", while "close-up", "30+" and a run of control characters stay whole.
_ALONE = r"""\]\[(){}<>;@#$%&?!*"`«»“”‘’„\u2012-\u2015"""
_TOKEN = re.compile(
    rf"""n't(?!\w) | '(?:s|re|ve|ll|d|m)(?!\w)          # is|n't, man|'s
    | (?:(?!n't(?!\w) | '(?:s|re|ve|ll|d|m)(?!\w))    # a word ends where one of these begins
        (?: [^\s{_ALONE}.,:'-]
          | (?<=\S) [,:] (?=\d)                       # 10:30, 1,000
          | \.(?=[^\s{_ALONE}.,:'])                   # 3.5, u.s
          | (?<=\w) '(?=\w)                           # o'clock
          | -(?!-) )
      )+
    | \.{{2,}} | -- | \S                              # ellipsis, dash, any other sign
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Within such a word: the end of a sentence without a space ("skis.The"), and letters of scripts that put no
# space between words, each of which stands for itself.
_UNSPACED = r"[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af。、！？]"
_PART = re.compile(rf"{_UNSPACED}|(?:(?!{_UNSPACED}|(?<=[a-z])\.(?=[A-Z])).)+|\.", re.DOTALL)
_BETWEEN = re.compile("[/…]")

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


class Word(NamedTuple):
    """A word or punctuation mark in small letters, and where it stands."""

    text: str
    start: int
    end: int


def words_of(text: str, start: int = 0, end: int = sys.maxsize) -> list[Word]:
    """Words and punctuation marks with their places, from `start` to `end`."""
    return [
        Word(part[0].lower(), part.start(), part.end())
        for token in _TOKEN.finditer(text, start, end)
        for part in _PART.finditer(text, token.start(), token.end())
    ]


def words_apart(text: str, ends: Iterable[int] = ()) -> list[Word]:
    """The same, but no word reaches over a slash, an ellipsis or the end of a sentence: "cups/mugs", "sink.is"."""
    signs = (place for sign in _BETWEEN.finditer(text) for place in sign.span())
    cuts = sorted({0, *signs, *ends, len(text)})
    return [word for start, end in pairwise(cuts) for word in words_of(text, start, end)]


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
