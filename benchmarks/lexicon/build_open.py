"""Makes `src/seewhen/verdicts/data/open_lexicon.json`: concrete nouns of English, from WordNet 3.0.

    python benchmarks/lexicon/build_open.py nltk_data/corpora/wordnet

A word is taken if its first noun sense stands in one of WordNet's files of physical things, if people use it (it
was met in WordNet's tagged texts, or WordNet's own definitions and examples use it), if it is not the name of one
person, place or building, and if it is not about pictures themselves. Words that are often a verb or an adjective
are `doubtful`: they count after an article. `words.json` beside this script has what was decided by hand.

The first sense of some visible things is something else: a mug is a quantity, a church a group, a pineapple a
plant that is seldom met. Those that LVIS, Objects365, Open Images or ADE20K name as classes are taken from there
(`named_in_datasets`), with a few people by what they do.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

from seewhen.atomic import replacing
from seewhen.verdicts.inflections import plurals
from seewhen.verdicts.lexicon import chair_lexicon, english

HERE = Path(__file__).parent
TARGET = HERE.parents[1] / "src" / "seewhen" / "verdicts" / "data" / "open_lexicon.json"
# WordNet's files of physical things by their numbers.
KINDS = {5: "animal", 6: "artifact", 13: "food", 17: "object", 18: "person", 20: "plant", 27: "substance"}
# How often a word must be met, in definitions or in tagged texts: kinds with many rare words ask for more.
USED = {"artifact": 4, "food": 4, "animal": 6, "object": 8, "plant": 15, "substance": 40, "person": 25}
TAGGED = {"artifact": 2, "food": 1, "animal": 1, "object": 3, "plant": 2, "substance": 8, "person": 12}
OTHERWISE = 0.2  # share of uses as a verb or an adjective that makes a word doubtful
SELDOM = 0.7  # share of uses as something else from which it is left out


class WordNet:
    """What its files say about words: `index.sense` and the definitions in `data.*`."""

    def __init__(self, folder: Path) -> None:
        self.kind: dict[str, int] = {}  # noun -> the file of its first sense
        self.names: set[str] = set()  # nouns that are first of all the name of one thing: Drew, Ontario
        self.nouns: Counter[str] = Counter()  # uses in tagged texts
        self.others: Counter[str] = Counter()
        self.adjectives: Counter[str] = Counter()
        self.verbs: set[str] = set()
        instances = {line[:8] for line in (folder / "data.noun").read_text().splitlines() if " @i " in line}
        for line in (folder / "index.sense").read_text().splitlines():
            key, place, number, uses = line.split()
            name, _, sense = key.partition("%")
            part, file = (int(field) for field in sense.split(":")[:2])
            (self.nouns if part == 1 else self.others)[name] += int(uses)
            if part == 2:
                self.verbs.add(name)
            if part in (3, 5):
                self.adjectives[name] += int(uses)
            if part == 1 and number == "1":
                self.kind[name] = file
                if place in instances:
                    self.names.add(name)
        self.used: Counter[str] = Counter()  # words and rows of two in definitions and examples
        for part in ("noun", "verb", "adj", "adv"):
            for line in (folder / f"data.{part}").read_text().splitlines():
                words = re.findall(r"[a-z]+", line.partition(" | ")[2].lower())
                self.used.update(words)
                self.used.update(" ".join(pair) for pair in pairwise(words))
        exceptions = (line.split() for line in (folder / "noun.exc").read_text().splitlines())
        self.irregular = {form: base for form, base, *_ in exceptions}

    def otherwise(self, word: str) -> float:
        """The share of its uses that are no noun."""
        return self.others[word] / max(1, self.nouns[word] + self.others[word])

    def is_common(self, word: str) -> bool:
        """A thing by its first noun sense, often enough, and not mostly something else."""
        kind = KINDS.get(self.kind[word])
        if kind is None or (word in self.adjectives and not self.nouns[word]) or self.otherwise(word) > SELDOM:
            return False
        if word.endswith("ing") and {word[:-3], word[:-3] + "e"} & self.verbs:  # seating, serving
            return False
        if word.endswith("s") and word[:-1] in self.kind and word not in english("plural"):  # cows, colors
            return False
        return self.nouns[word] >= TAGGED[kind] or self.used[word] + self.used[plurals(word)[0]] >= USED[kind]

    def is_common_pair(self, name: str) -> bool:
        kind = KINDS.get(self.kind[name])
        return kind in ("artifact", "food", "animal") and bool(
            self.used[name.replace("_", " ")] > 1 or self.nouns[name]
        )

    def terms(self) -> set[str]:
        nouns = self.kind.keys() - self.names
        words = {name for name in nouns if re.fullmatch(r"[a-z]{3,}", name) and self.is_common(name)}
        pairs = {n for n in nouns if re.fullmatch(r"[a-z]{3,}_[a-z]{3,}", n) and self.is_common_pair(n)}
        return words | {name.replace("_", " ") for name in pairs}

    def common_adjectives(self, nouns: set[str]) -> set[str]:
        """After one of them a doubtful word is a noun."""
        names = {name for name in self.adjectives if re.fullmatch(r"[a-z]{3,}", name)} - nouns
        return {n for n in names if self.used[n] >= 30 and 2 * self.adjectives[n] > self.nouns[n] + self.others[n]}

    def irregular_of(self, words: set[str]) -> dict[str, str]:
        """Plurals that no rule makes."""
        single = {word for term in words for word in term.split()}
        found = {form: base for form, base in self.irregular.items() if base in single and form.isalpha()}
        return {form: base for form, base in found.items() if form not in plurals(base) and form not in single}


def build(folder: Path) -> dict[str, Any]:
    """What the packaged file holds."""
    wordnet = WordNet(folder)
    by_hand = json.loads((HERE / "words.json").read_text(encoding="utf-8"))
    by_hand = {name: value.split() if isinstance(value, str) else value for name, value in by_hand.items()}
    left_out = {*by_hand["about_pictures"], *by_hand["too_vague"], *by_hand["rarely_a_thing"]}
    coco = chair_lexicon()
    words = {word for word in wordnet.terms() if left_out.isdisjoint([word, word.split()[-1]])}
    words |= {term for term in coco.node if " " not in term or term in coco.pairs}
    for kind in ("added", "added_pairs", "named_in_datasets", "named_in_datasets_pairs"):
        words |= set(by_hand[kind])
    for kind in ("never", "never_pairs", "no_objects", "synonyms"):
        words -= set(by_hand[kind])
    doubtful = {word for word in words if wordnet.otherwise(word) > OTHERWISE} - set(by_hand["surely"])
    return {
        "about": "Concrete nouns of English. Made from WordNet 3.0 by benchmarks/lexicon/build_open.py.",
        "words": ",".join(sorted(words)),
        "synonyms": by_hand["synonyms"],
        "no_objects": by_hand["no_objects"],
        "doubtful": ",".join(sorted(doubtful | set(by_hand["doubtful"]))),
        "mass": ",".join(by_hand["mass"]),
        "adjectives": ",".join(sorted(wordnet.common_adjectives(words))),
        "irregular": wordnet.irregular_of(words) | by_hand["irregular"],
    }


def main() -> None:
    content = build(Path(sys.argv[1]))
    with replacing(TARGET) as name:
        Path(name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    words = content["words"].split(",")
    print(len(words), "terms,", sum(" " in word for word in words), "of them compounds")


if __name__ == "__main__":
    main()
