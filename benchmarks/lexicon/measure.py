"""How well the `open` lexicon reads captions, against CHAIR's reading of its 80 objects.

    python benchmarks/lexicon/measure.py shared/data/chair/captions/*.jsonl --tagged 300

A word that CHAIR counts is found if a mention of the open reader covers it. A mention of the open reader whose
term is in CHAIR's vocabulary is right if CHAIR counts a word of it. With NLTK's data (NLTK_DATA) also: the share
of all mentions whose last word NLTK's tagger takes for a noun. Writes `measured.json` beside this script.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from seewhen.atomic import replacing
from seewhen.benchmarks.records import read_answers
from seewhen.verdicts.inflections import words_apart
from seewhen.verdicts.lexicon import chair_lexicon, open_lexicon
from seewhen.verdicts.reader import Mention, read_mentions
from seewhen.verdicts.sentences import sentence_ends

RESULT = Path(__file__).with_name("measured.json")
SHOWN = 25


def covers(mentions: Iterable[Mention], one: Mention) -> bool:
    return any(each.start < one.end and one.start < each.end for each in mentions)


def not_nouns(caption: str, mentions: Iterable[Mention]) -> list[str]:
    """Mentions whose last word NLTK's tagger takes for something else."""
    from nltk.tag import pos_tag

    words = words_apart(caption, sentence_ends(caption))
    tags = dict(zip((word.end for word in words), pos_tag([caption[w.start : w.end] for w in words]), strict=True))
    return [each.text.lower() for each in mentions if not tags[each.end][1].startswith("NN")]


def measure(captions: list[str], tagged: int) -> dict[str, object]:
    coco, everything = chair_lexicon(), open_lexicon().with_variants  # as `confirm` and `check` read
    missed: Counter[str] = Counter()
    extra: Counter[str] = Counter()
    other: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for number, caption in enumerate(captions):
        by_chair, by_open = read_mentions(caption, coco), read_mentions(caption, everything)
        known = [each for each in by_open if coco.forms.lemmas([each.text.lower()])[0] in coco.node]
        lost = [each.text.lower() for each in by_chair if not covers(by_open, each)]
        wrong = [each.text.lower() for each in known if not covers(by_chair, each)]
        missed.update(lost)
        extra.update(wrong)
        counts += Counter(
            captions=1,
            chair=len(by_chair),
            open=len(by_open),
            known=len(known),
            missed=len(lost),
            extra=len(wrong),
        )
        if number < tagged:
            odd = not_nouns(caption, by_open)
            other.update(odd)
            counts += Counter(tagged=len(by_open), not_nouns=len(odd))
    return {
        "counts": dict(counts),
        "recall": round(1 - counts["missed"] / counts["chair"], 4),
        "precision": round(1 - counts["extra"] / counts["known"], 4),
        "nouns_by_nltk": round(1 - counts["not_nouns"] / counts["tagged"], 4) if counts["tagged"] else None,
        "mentions_a_caption": round(counts["open"] / counts["captions"], 2),
        "missed": dict(missed.most_common(SHOWN)),
        "extra": dict(extra.most_common(SHOWN)),
        "not_nouns": dict(other.most_common(SHOWN)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tagged", type=int, default=0, help="captions to tag with NLTK")
    given = parser.parse_args()
    by_file = {path.name: list(read_answers(path, ("image_id",)).values()) for path in given.files}
    whole = measure([caption for captions in by_file.values() for caption in captions], given.tagged)
    shares = {name: measure(captions, 0) for name, captions in by_file.items()}
    found = whole | {
        "by_file": {name: {kind: each[kind] for kind in ("recall", "precision")} for name, each in shares.items()}
    }
    with replacing(RESULT) as name:
        Path(name).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
