"""CHAIR: objects a caption mentions that the image does not show (Rohrbach et al., EMNLP 2018)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from seewhen.benchmarks.base import Benchmark, Metric, Options, Row, Sample, Score, make_score, refuse_unknown
from seewhen.benchmarks.chair import files as chair_files
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.chair.coco import Objects, image_key, image_keys, load_objects
from seewhen.benchmarks.chair.prompts import STYLES
from seewhen.benchmarks.records import read_answers
from seewhen.benchmarks.sources import SourcePart
from seewhen.benchmarks.sums import Sum, Totals, divide, harmonic_mean, percent, pool
from seewhen.errors import InvalidInput


@dataclass(frozen=True)
class Chair(Benchmark):
    """Captions of `images`, judged by the objects each image shows."""

    name: ClassVar = "chair"
    metrics: ClassVar = (
        Metric("chair_s", "CHAIR_S", -1),
        Metric("chair_i", "CHAIR_I", -1),
        Metric("recall", "Recall", 1, price=True),  # CHAIR falls by saying less
        Metric("precision", "Precision", 1),
        Metric("f1", "F1", 1),
        Metric("chair_i_unique", "CHAIR_I, unique objects", -1),
        Metric("words", "Words", 0, "words"),
        Metric("length", "Length", 0, "tokens"),
    )
    styles: ClassVar = STYLES
    default_style: ClassVar = "plain-512"
    options: ClassVar = ("lemmatizer", "image_list")
    scene_kinds: ClassVar = ()
    files: ClassVar = (chair_files.TABLE, *chair_files.ANNOTATIONS)
    answers_are: ClassVar = "captions"
    length_counts: ClassVar = True

    truth: Objects
    images: tuple[str, ...]
    reader: CaptionReader = field(default_factory=CaptionReader)

    def __post_init__(self) -> None:
        image_keys(self.images, "The images")

    @property
    def settings(self) -> dict[str, str]:
        return {"lemmatizer": self.reader.lemmatizer, "images": str(len(self.images))}

    def samples(self) -> Sequence[Sample]:
        question = self.styles[self.default_style].text("")
        return [
            Sample(image, image, question, tuple(sorted(self._shown(image))), "captions") for image in self.images
        ]

    def _known(self, image: str) -> frozenset[str] | None:
        return self.truth.get(image, self.truth.get(image_key(image)))

    def _shown(self, image: str) -> frozenset[str]:
        found = self._known(image)
        if found is None:
            # The usual scorer takes an unknown image for an empty one and calls everything hallucinated.
            raise InvalidInput(
                f"Nothing is known about image {image}: it is in no annotation file given.",
                "Give the annotations of its split too (COCO train2014 and val2014, instances and captions).",
            )
        return found

    def shown(self, image: str) -> tuple[str, ...]:
        return tuple(sorted(self._known(image) or ()))

    def score(self, answers: Mapping[str, str]) -> Score:
        """`answers` are captions by image id, in any of COCO's ways to write it."""
        by_key = image_keys(answers, "The captions")
        wanted = {image_key(image) for image in self.images}
        refuse_unknown(by_key, wanted, self.name)
        return make_score(self, self.rows(answers), missing=len(wanted - by_key.keys()))

    def rows(self, answers: Mapping[str, str]) -> list[Row]:
        return [self._row(image, caption) for image, caption in answers.items()]

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
            "words": mentions.words,
        }
        detail = {"mentioned": list(mentions.objects), "hallucinated": wrong, "caption": caption}
        return Row(image, image_key(image), "captions", int(not wrong), counts, detail)

    @classmethod
    def summarise(cls, totals: Totals) -> dict[str, Sum]:
        """CHAIR_s, CHAIR_i, recall, precision, F1 in percent; length in tokens, punctuation included.

        CHAIR_i counts every mention, so a caption that repeats a true object looks better; `chair_i_unique` counts
        each object of a caption once."""
        sums = pool(totals)
        if not sums:
            return {}
        recall = percent(sums["recalled"], sums["ground_truth"])
        unique = sums["distinct_mentioned"]
        precision = percent(sums["recalled"], unique)
        metrics = {
            "chair_s": percent(sums["hallucinated_captions"], sums["captions"]),
            "chair_i": percent(sums["hallucinated_mentions"], sums["mentions"]),
            "chair_i_unique": percent(unique - sums["recalled"], unique),
            "recall": recall,
            "precision": precision,
            "f1": harmonic_mean(precision, recall),
            "length": divide(sums["tokens"], sums["captions"]),
        }
        if "words" in sums:  # runs scored by 0.1 have none
            metrics["words"] = divide(sums["words"], sums["captions"])
        return metrics

    @classmethod
    def open(cls, folder: Path, options: Options) -> Chair:
        table = chair_files.TABLE.find(folder)
        paths = [table] if table else [file.locate(folder) for file in chair_files.ANNOTATIONS]
        _, images = chair_files.image_list(options.image_list)
        reader = _reader(options)
        return cls(_truth(paths, reader), images, reader)

    @classmethod
    def of_scenes(cls, part: str, kind: str, count: int, options: Options) -> Chair:
        from seewhen.scenes import chair, dataset

        pictures = dataset(part, count)  # type: ignore[arg-type]
        truth = {image: frozenset(things) for image, things in chair(pictures).items()}
        return cls(truth, tuple(truth), _reader(options))

    @classmethod
    def read(cls, answers: Path, paths: Sequence[Path], options: Options) -> tuple[Chair, dict[str, str]]:
        """`paths` are COCO's instances and captions files, or a table of objects."""
        if not paths:
            raise InvalidInput("What the images show is not known.", "Name COCO's files with --objects.")
        reader = _reader(options)
        captions = load_captions(answers)
        return cls(_truth(paths, reader), tuple(captions), reader), captions

    @classmethod
    def downloads(cls, image_list: str | None) -> list[SourcePart]:
        return chair_files.downloads(image_list)

    @classmethod
    def published(cls, metric: str, split: str, max_new_tokens: int) -> Mapping[str, Any]:
        return {"metric": metric, "max_new_tokens": max_new_tokens}


def _reader(options: Options) -> CaptionReader:
    return CaptionReader(options.lemmatizer or CaptionReader.lemmatizer)


def _truth(paths: Sequence[Path], reader: CaptionReader) -> Objects:
    """What the images show. An object that no caption can be found to mention would only lower recall, and a
    misspelt one be called hallucinated wherever it is mentioned."""
    truth = load_objects(paths, reader.lexicon, reader.objects)
    unknown = sorted(set().union(*truth.values()) - set(reader.lexicon.objects))
    if unknown:
        shown = ", ".join(map(repr, unknown[:3])) + (" ..." if len(unknown) > 3 else "")
        raise InvalidInput(
            f"{', '.join(path.name for path in paths)}: {shown} is none of CHAIR's 80 objects.",
            "Rename the categories to COCO's, and leave the others out.",
        )
    return truth


def load_captions(path: Path) -> dict[str, str]:
    """Captions by image id, in the order of the file."""
    return read_answers(path, ("image_id", "image", "id"))
