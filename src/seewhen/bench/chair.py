"""CHAIR: objects a caption mentions that the image does not show (Rohrbach et al., EMNLP 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from seewhen.bench.answers import read_answers
from seewhen.bench.base import (
    Row,
    Sample,
    Score,
    Sum,
    Totals,
    divide,
    harmonic_mean,
    make_score,
    percent,
    pool,
    refuse_unknown,
)
from seewhen.bench.coco import Objects, image_key
from seewhen.bench.lemmatise import Lemmatizer, lemmatizer_named
from seewhen.bench.lexicon import Lexicon, chair_lexicon
from seewhen.bench.prompts import CHAIR_STYLES, style_named
from seewhen.errors import InvalidInput


@dataclass(frozen=True)
class Mentions:
    """What CHAIR sees in a caption: objects in order, repetitions kept, and how many tokens there are."""

    objects: tuple[str, ...]
    tokens: int


@dataclass(frozen=True)
class CaptionReader:
    """From a caption to the objects it mentions."""

    lemmatizer: str = "offline"
    lexicon: Lexicon = field(default_factory=chair_lexicon)

    @cached_property
    def _lemmas(self) -> Lemmatizer:
        return lemmatizer_named(self.lemmatizer, self.lexicon)

    def read(self, caption: str) -> Mentions:
        words = merge_pairs(self._lemmas(caption), self.lexicon.pairs)
        tokens = len(words)
        if "toilet" in words:  # the seat of a toilet is not a chair
            words = [word for word in words if word != "seat"]
        node = self.lexicon.node
        return Mentions(tuple(node[word] for word in words if word in node), tokens)

    def objects(self, caption: str) -> tuple[str, ...]:
        """The objects alone."""
        return self.read(caption).objects


def merge_pairs(words: Sequence[str], pairs: Mapping[str, str]) -> list[str]:
    """Reads two words as one where the pair is known, from left to right."""
    merged = []
    place = 0
    while place < len(words):
        pair = " ".join(words[place : place + 2])
        merged.append(pairs.get(pair, words[place]))
        place += 2 if pair in pairs else 1
    return merged


@dataclass(frozen=True)
class Chair:
    """Captions of `images`, judged by the objects each image shows."""

    truth: Objects
    images: tuple[str, ...]
    reader: CaptionReader = field(default_factory=CaptionReader)

    name = "chair"
    default_style = "plain-512"

    @property
    def settings(self) -> dict[str, str]:
        return {"lemmatizer": self.reader.lemmatizer, "images": str(len(self.images))}

    def samples(self) -> Sequence[Sample]:
        question = CHAIR_STYLES[self.default_style].text("")
        return [
            Sample(image, image, question, tuple(sorted(self._shown(image))), "captions") for image in self.images
        ]

    def prompt(self, sample: Sample, style: str = default_style) -> str:
        return style_named(CHAIR_STYLES, style).text(sample.question)

    def _shown(self, image: str) -> frozenset[str]:
        try:
            return self.truth[image_key(image)]
        except KeyError:
            # The usual scorer takes an unknown image for an empty one and calls everything hallucinated.
            raise InvalidInput(
                f"Nothing is known about image {image}: it is in no annotation file given.",
                "Give the annotations of its split too (COCO train2014 and val2014, instances and captions).",
            ) from None

    def score(self, answers: Mapping[str, str]) -> Score:
        """`answers` are captions by image id."""
        by_key = {image_key(image): caption for image, caption in answers.items()}
        wanted = {image_key(image) for image in self.images}
        refuse_unknown(by_key, wanted, self.name)
        rows = [self._row(image, caption) for image, caption in answers.items()]
        missing = len(wanted - by_key.keys())
        return make_score(self, rows, missing)

    def _row(self, image: str, caption: str) -> Row:
        shown = self._shown(image)
        mentions = self.reader.read(caption)
        wrong = [thing for thing in mentions.objects if thing not in shown]
        distinct = set(mentions.objects)
        counts = {
            "captions": 1,
            "hallucinated_captions": int(bool(wrong)),
            "mentions": len(mentions.objects),
            "hallucinated_mentions": len(wrong),
            "ground_truth": len(shown),
            "recalled": len(distinct & shown),
            "distinct_mentioned": len(distinct),
            "tokens": mentions.tokens,
        }
        detail = {"mentioned": list(mentions.objects), "hallucinated": wrong, "caption": caption}
        return Row(image, image_key(image), "captions", int(not wrong), counts, detail)

    def summarise(self, totals: Totals) -> dict[str, Sum]:
        """CHAIR_s, CHAIR_i, recall, precision, F1 in percent; length in tokens, punctuation included."""
        sums = pool(totals)
        if not sums:
            return {}
        recall = percent(sums["recalled"], sums["ground_truth"])
        precision = percent(sums["recalled"], sums["distinct_mentioned"])
        return {
            "chair_s": percent(sums["hallucinated_captions"], sums["captions"]),
            "chair_i": percent(sums["hallucinated_mentions"], sums["mentions"]),
            "recall": recall,
            "precision": precision,
            "f1": harmonic_mean(precision, recall),
            "length": divide(sums["tokens"], sums["captions"]),
        }


def load_captions(path: Path) -> dict[str, str]:
    """Captions by image id, in the order of the file."""
    return read_answers(path, ("image_id", "image", "id"))
