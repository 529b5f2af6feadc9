"""Which words name objects: `coco` (CHAIR's 80), `open` (concrete nouns of English), or a file of the user's."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput
from seewhen.verdicts.inflections import Inflections, plurals, words_apart, words_of

LEXICONS = ("coco", "open")
MOST_WORDS = 200_000  # in a file of the user's
MOST_BYTES = 16 << 20
LONGEST = 8  # words in a term
_MOST_LETTERS = 500  # of one
_SHORTEST = 3  # letters of each half of a word that is split
_NO_TEXT = ("Cc", "Co", "Cs", "Cn")  # control, private, half and unassigned characters
_FEW = 10  # words of a text that may be a list of objects
_KNOWN = 0.3  # share of the words of such a list that are known


@cache
def english(kind: str) -> frozenset[str]:
    """Words of English: `plural` have no singular, `frequent` are in any text, `openers` stand before a noun,
    `grammar` decides, and `whole` words are no beginnings of others. `others` are frequent in other languages."""
    return frozenset(_packaged("english.json")[kind].split())


def _packaged(name: str) -> dict[str, Any]:
    return json.loads(resources.files("seewhen.verdicts").joinpath("data", name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Lexicon:
    """A vocabulary of objects and the rules that go with it."""

    node: Mapping[str, str]  # term -> the object it stands for
    pairs: Mapping[str, str]  # words in a row -> the term they are read as; no term of an object: read past
    verbs: frozenset[str] = frozenset()  # terms whose verb forms count as well
    irregular: Mapping[str, str] = field(default_factory=dict)  # inflected form -> word
    kept: frozenset[str] = frozenset()  # forms that are never reduced
    is_english: bool = True  # its words take English endings
    as_chair: bool = False  # words are cut as the published scorer cuts them
    own: bool = False  # a list of the user's: nobody else knows in which language
    # Of nouns in a row only the last names the object ("kitchen sink"), and doubtful words are read with care.
    only_heads: bool = False
    doubtful: frozenset[str] = frozenset()  # nouns after one of `openers`, something else elsewhere
    openers: frozenset[str] = frozenset()  # articles, numbers, prepositions, adjectives
    mass: frozenset[str] = frozenset()  # objects that take no article
    plural: frozenset[str] = field(default_factory=lambda: english("plural"))  # words without a singular

    @property
    def objects(self) -> tuple[str, ...]:
        """The objects themselves, in the published order."""
        return tuple(dict.fromkeys(self.node.values()))

    @property
    def words(self) -> frozenset[str]:
        """Every single word that occurs in a term or a pair."""
        return frozenset(word for term in (*self.node, *self.pairs) for word in term.split())

    @cached_property
    def forms(self) -> Inflections:
        """The inflected forms of its words."""
        if not self.is_english:
            return Inflections({})
        return Inflections.of(self.words, self.verbs, self.irregular, self.kept)

    @cached_property
    def longest(self) -> int:
        """Words in its longest term."""
        return max((term.count(" ") + 1 for term in self.pairs), default=1)

    @cached_property
    def synonyms(self) -> Mapping[str, tuple[str, ...]]:
        """Object -> all terms that stand for it."""
        found: dict[str, list[str]] = {}
        for term in (*self.node, *self.pairs):
            name = self.node.get(self.pairs.get(term, term))
            if name is not None and term not in found.setdefault(name, []):
                found[name].append(term)
        return {name: tuple(terms) for name, terms in found.items()}

    @cached_property
    def variants(self) -> Mapping[str, tuple[str, ...]]:
        """Object -> other spellings of its words: joined, hyphenated ("diningtable") and split ("hand bag")."""
        if not self.is_english:
            return {}
        heads = self.words | open_lexicon().words
        found: dict[str, list[str]] = {}
        for name, terms in self.synonyms.items():
            for spelled in (spelled for term in terms for spelled in _respelled(term, heads)):
                if (
                    spelled not in self.node
                    and spelled not in self.pairs
                    and not self._says_something_else(spelled)
                ):
                    found.setdefault(name, []).append(spelled)
        return {name: tuple(dict.fromkeys(spellings)) for name, spellings in found.items()}

    def _says_something_else(self, spelled: str) -> bool:
        """Whether a split word has two words of their own: "red coat", or "dogs led", after which dogs would be
        no dog any more."""
        words = spelled.split()
        forms = (
            form for word in words for form in (word, *plurals(word)) if self.forms.nouns.get(form, word) != word
        )
        return len(words) > 1 and (words[0] in self.openers or any(forms))

    @cached_property
    def with_variants(self) -> Lexicon:
        """The same words, read in other spellings too."""
        node = {spelled: name for name, spellings in self.variants.items() for spelled in spellings}
        pairs = {spelled: spelled for spelled in node if " " in spelled}
        return replace(self, node={**node, **self.node}, pairs={**pairs, **self.pairs}, as_chair=False)

    def check_language(self, text: str) -> None:
        """Refuses text that is clearly not English where the words are."""
        if not self.own and not _may_be_english(text):
            raise InvalidInput(
                f"This lexicon is English and the text is not: {text[:40]!r}.",
                "Give a list in that language: a file, one object per line, its other forms after commas.",
            )

    def note_if_foreign(self, text: str) -> str | None:
        """What to say of an answer in which such words cannot be found."""
        if self.own or _may_be_english(text):
            return None
        return (
            "The answer is not English, but the lexicon is: most of what it names was not asked about. "
            "Give a list in that language as the lexicon, a file with one object per line."
        )


def _respelled(term: str, heads: frozenset[str]) -> Iterator[str]:
    if " " in term:
        yield from (term.replace(" ", ""), term.replace(" ", "-"))
        return
    for place in range(_SHORTEST, len(term) - _SHORTEST + 1):
        if term[place:] in heads:
            yield f"{term[:place]} {term[place:]}"


def _may_be_english(text: str) -> bool:
    letters = [letter for letter in text[:10_000] if letter.isalpha()]
    if sum(letter < "\u0250" for letter in letters) < len(letters) / 2:
        return False
    words = [word.text for word in words_of(text[:10_000]) if word.text.isalpha()]
    here, elsewhere = (sum(word in english(kind) for word in words) for kind in ("frequent", "others"))
    if elsewhere > max(1, 2 * here):
        return False
    if here or len(words) < _FEW:
        return True
    different = set(words)
    return len(different & (english("whole") | open_lexicon().words)) >= _KNOWN * len(different)


def lexicon_named(name: str) -> Lexicon:
    """`coco`, `open`, or the path of a list of words."""
    if name == "coco":
        return chair_lexicon()
    if name == "open":
        return open_lexicon()
    if not Path(name).is_file():
        raise InvalidInput(
            f"There is no lexicon {name!r}, and no file of that name.",
            f"Use {' or '.join(LEXICONS)}, or the path of a file with one object per line.",
        )
    return read_lexicon(Path(name))


@cache
def chair_lexicon() -> Lexicon:
    """CHAIR's vocabulary of the 80 COCO categories."""
    data = _packaged("chair_lexicon.json")
    pairs = dict(data["pairs"])
    for animal in data["young_animals"]:
        pairs[f"baby {animal}"] = pairs[f"adult {animal}"] = animal
    for vehicle in data["passenger_vehicles"]:
        pairs[f"passenger {vehicle}"] = vehicle
    return Lexicon(
        node={term: name for name, terms in data["objects"].items() for term in terms},
        pairs=pairs,
        verbs=frozenset(data["verbs"]),
        irregular=data["irregular"],
        kept=frozenset(data["kept"]),
        as_chair=True,
        plural=frozenset(),  # "a scissors", as POPE asks and models were trained to be asked
    )


@cache
def open_lexicon() -> Lexicon:
    """Concrete nouns of English, made from WordNet by `benchmarks/lexicon/build_open.py`."""
    data = _packaged("open_lexicon.json")
    terms = data["words"].split(",")
    node = dict(zip(terms, terms, strict=True)) | data["synonyms"]
    return Lexicon(
        node=node,
        pairs=_compounds((*node, *data["no_objects"])),
        irregular=data["irregular"],
        doubtful=frozenset(data["doubtful"].split(",")),
        only_heads=True,
        openers=frozenset(data["adjectives"].split(",")) | english("openers"),
        mass=frozenset(data["mass"].split(",")),
    )


def _compounds(terms: Iterable[str]) -> dict[str, str]:
    """Terms of several words, also where the plural of the last is another word: "wine glasses" are no glasses."""
    known = set(terms)
    found = {term: term for term in known if " " in term}
    for term in list(found):
        first, _, last = term.rpartition(" ")
        found |= {f"{first} {form}": term for form in plurals(last) if form in known}
    return found


# --- a file of the user's ----------------------------------------------------------------------------


def read_lexicon(path: Path) -> Lexicon:
    """One object per line, its synonyms after commas, comments after `#`."""
    node: dict[str, str] = {}
    for terms in _groups(_text_of(path), path):
        name = node.get(_key(terms[0]), terms[0])
        for term in terms:
            node.setdefault(_key(term), name)
    if not node:
        raise InvalidInput(f"{path} names no object.", "Write one object per line, its synonyms after commas.")
    is_english = all(term.isascii() for term in node)
    return Lexicon(node, {term: term for term in node if " " in term}, is_english=is_english, own=True)


def _key(term: str) -> str:
    return term if term.isascii() and term.isalpha() else " ".join(word.text for word in words_apart(term))


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInput(f"{path} is larger than {MOST_BYTES >> 20} MB.", "A lexicon is a list of words.")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.", "Give the path of a text file.") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path} is not UTF-8 text.", "Save it as UTF-8, one object per line.") from None


def _groups(text: str, path: Path) -> Iterator[list[str]]:
    count = 0
    for number, line in enumerate(text.split("\n"), 1):
        try:
            terms = [_term(part) for part in line.split("#")[0].split(",") if part.strip()]
        except ValueError as error:
            raise InvalidInput(f"{path}, line {number}: {error}.", "Write words, one object per line.") from None
        count += len(terms)
        if count > MOST_WORDS:
            raise InvalidInput(f"{path} has more than {MOST_WORDS} words.", "Leave out what is never said.")
        if terms:
            yield terms


def _term(part: str) -> str:
    part = part.strip()
    if len(part) > _MOST_LETTERS:
        raise ValueError(f"{part[:40]!r} goes on for more than {_MOST_LETTERS} letters")
    term = unicodedata.normalize("NFC", " ".join(part.split())).lower()
    if not term.isprintable() and any(unicodedata.category(letter) in _NO_TEXT for letter in term):
        raise ValueError(f"{term[:40]!r} has characters that are no text")
    if not any(letter.isalpha() for letter in term):
        raise ValueError(f"{term[:40]!r} has no letters")
    if _key(term).count(" ") >= LONGEST:
        raise ValueError(f"{term[:40]!r} has more than {LONGEST} words")
    return term
