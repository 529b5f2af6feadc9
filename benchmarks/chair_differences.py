"""Where the two lemmatizers of CHAIR disagree on real captions, as Markdown for `docs/benchmarks.md`.

python benchmarks/chair_differences.py --objects OBJECTS CAPTIONS.jsonl ...
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from seewhen.benchmarks.chair import Chair, load_captions
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.chair.coco import Objects, load_objects
from seewhen.benchmarks.lemmatise import lemmatizer_named, nltk_reader
from seewhen.verdicts.inflections import tokenize

_METRICS = ("chair_s", "chair_i", "recall", "precision", "length")


def report(files: Mapping[str, Mapping[str, str]], truth: Objects, shown: int = 20) -> str:
    """Two tables: the scores of each file under both lemmatizers, and the words behind the difference."""
    return f"{_score_table(files, truth)}\n\n{_word_table(files, shown)}"


def _score_table(files: Mapping[str, Mapping[str, str]], truth: Objects) -> str:
    lines = [
        "| captions | same mentions | " + " | ".join(_METRICS) + " |",
        "|---|---|" + "---|" * len(_METRICS),
    ]
    for name, captions in files.items():
        nltk, offline = (
            Chair(truth, tuple(captions), CaptionReader(lemmatizer)).score(captions)
            for lemmatizer in ("nltk", "offline")
        )
        same = sum(
            a.detail["mentioned"] == b.detail["mentioned"] for a, b in zip(nltk.rows, offline.rows, strict=True)
        )
        cells = [f"{nltk.metrics[m]:.2f} / {offline.metrics[m]:.2f}" for m in _METRICS]
        lines.append(f"| {name} | {same} of {len(captions)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _word_table(files: Mapping[str, Mapping[str, str]], shown: int) -> str:
    lexicon = CaptionReader().lexicon
    offline = lemmatizer_named("offline", lexicon)
    only_nltk: Counter[tuple[str, str]] = Counter()
    only_offline: Counter[tuple[str, str]] = Counter()
    for captions in files.values():
        for caption in captions.values():
            tagged = [(token.text, token.lemma) for token in nltk_reader()(caption.lower())]
            plain = list(zip(tokenize(caption.lower()), offline(caption), strict=True))
            a, b = (
                Counter((text, lexicon.node[lemma]) for text, lemma in forms if lemma in lexicon.node)
                for forms in (tagged, plain)
            )
            only_nltk += a - b
            only_offline += b - a
    lines = ["| word | counted as | only by NLTK | only offline | why |", "|---|---|---|---|---|"]
    both = only_nltk + only_offline
    ranked = sorted(both, key=lambda form: (-both[form], form))
    for form in ranked[:shown]:
        why = _why(form[0], only_offline[form])
        lines.append(f"| {form[0]} | {form[1]} | {only_nltk[form]} | {only_offline[form]} | {why} |")
    rest = ranked[shown:]
    if rest:
        sums = [sum(counter[form] for form in rest) for counter in (only_nltk, only_offline)]
        lines.append(f"| {len(rest)} other forms | | {sums[0]} | {sums[1]} | |")
    return "\n".join(lines)


def _why(text: str, offline: int) -> str:
    if text.endswith(("ing", "ed")):
        return "thing or action: NLTK's tagger looks at the sentence, the offline rule at the word before"
    if not text.isalpha():
        return "cut into words differently"
    if offline:
        return "a noun that the tagger takes for another kind of word, or that WordNet does not hold"
    return "a form that WordNet reduces and the offline table does not hold"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(description="Where CHAIR's two lemmatizers disagree.")
    parser.add_argument("--objects", type=Path, required=True)
    parser.add_argument("captions", type=Path, nargs="+")
    given = parser.parse_args(arguments)
    reader = CaptionReader()
    truth = load_objects([given.objects], reader.lexicon, reader.objects)
    print(report({path.stem: load_captions(path) for path in given.captions}, truth))


if __name__ == "__main__":
    main()
