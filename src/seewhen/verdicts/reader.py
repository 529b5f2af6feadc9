"""From text to the objects it names: which, in what words, where, in which sentence, with which tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from seewhen.errors import InvalidInput
from seewhen.verdicts.inflections import Word, words_apart, words_of
from seewhen.verdicts.lexicon import Lexicon
from seewhen.verdicts.sentences import sentence_ends

_JOINING = frozenset([",", "/", "and", "or"])
_DENYING = frozenset(["no", "without"])  # "no people", "without a hat": said to be absent
Term = tuple[str, int, int]  # a term, its first word, the word after its last


@dataclass(frozen=True)
class Mention:
    """A word or words that name an object."""

    object: str
    text: str  # as written
    start: int  # in characters, end excluded
    end: int
    sentence: int  # its number, from 0; the unfinished last sentence counts


MOST_WORDS = 10_000


def check_text(text: str, lexicon: Lexicon) -> None:
    """Refuse what is no text, a text that is too long, or in another language than the lexicon."""
    if not isinstance(text, str):
        raise InvalidInput(
            f"A text to check is one string, not {type(text).__name__}.", "Check one text at a time."
        )
    if len(text) > 100 * MOST_WORDS or len(text.split()) > MOST_WORDS:
        raise InvalidInput(f"The text has more than {MOST_WORDS:,} words.", "Check it in parts.")
    lexicon.check_language(text)


def read_mentions(text: str, lexicon: Lexicon) -> tuple[Mention, ...]:
    """The objects that `text` names, in order, repetitions kept."""
    ends = sentence_ends(text)
    words = words_of(text) if lexicon.as_chair else words_apart(text, ends)
    numbered = groupby(words, lambda word: bisect_right(ends, word.start))
    found = [each for number, words in numbered for each in _in_sentence(list(words), number, text, lexicon)]
    if any(term == "toilet" for term, _ in found):  # the seat of a toilet is not a chair
        found = [(term, mention) for term, mention in found if term != "seat"]
    return tuple(mention for _, mention in found)


def _in_sentence(words: list[Word], number: int, text: str, lexicon: Lexicon) -> Iterator[tuple[str, Mention]]:
    lemmas = lexicon.forms.lemmas([word.text for word in words])
    runs = merged(lemmas, lexicon.pairs, lexicon.longest)
    if lexicon.only_heads:
        runs = _heads([word.text for word in words], list(runs), lexicon)
    for term, first, last in runs:
        if term in lexicon.node:
            start, end = words[first].start, words[last - 1].end
            yield term, Mention(lexicon.node[term], text[start:end], start, end, number)


def _heads(words: list[str], runs: list[Term], lexicon: Lexicon) -> Iterator[Term]:
    """The terms that name a thing: a doubtful word that does, and of nouns in a row the last."""
    nouns: list[Term] = []
    for run in runs:
        last = nouns[-1] if nouns else None
        if run[0] not in lexicon.node or not _DENYING.isdisjoint(words[max(0, run[1] - 2) : run[1]]):
            continue
        if run[0] in lexicon.doubtful and not _is_noun(words, run, last, lexicon):
            continue
        if last and last[2] == run[1]:
            nouns.pop()
        nouns.append(run)
    yield from nouns


def _is_noun(words: list[str], run: Term, last: Term | None, lexicon: Lexicon) -> bool:
    """Whether a doubtful word names a thing: "a watch", "street sign", "cups and watches"; not "people watch"."""
    first = run[1]
    if first and (words[first - 1] in lexicon.openers or "-" in words[first - 1]):  # "snow-covered slope"
        return True
    if last is None or not _JOINING.issuperset(words[last[2] : first]):
        return False
    # A verb would agree with a noun right before it by being of the other form: "man watches", "people watch".
    # Nouns in a list mostly have the same form; before a head a noun is in the singular.
    plural, before = (words[each[2] - 1] != each[0].split()[-1] for each in (run, last))
    return plural == before and not (plural and last[2] == first)


def merged(words: Sequence[str], pairs: Mapping[str, str], longest: int) -> Iterator[Term]:
    """Terms with the words they cover (first, end): known rows of words are one term, the longest first."""
    place = 0
    while place < len(words):
        for count in range(min(longest, len(words) - place), 1, -1):
            row = " ".join(words[place : place + count])
            if row in pairs:
                yield pairs[row], place, place + count
                place += count
                break
        else:
            yield words[place], place, place + 1
            place += 1


@dataclass(frozen=True)
class TokenSpans:
    """Where each token of a text stands in it; the tokens' texts joined are the text."""

    ends: tuple[int, ...]

    @staticmethod
    def of(texts: Sequence[str]) -> TokenSpans:
        return TokenSpans(tuple(accumulate(map(len, texts))))

    def covering(self, start: int, end: int) -> range:
        """The tokens that hold the characters from `start` to `end`; the first is where the word begins."""
        first = bisect_right(self.ends, start)
        return range(first, bisect_left(self.ends, end, first) + 1)
