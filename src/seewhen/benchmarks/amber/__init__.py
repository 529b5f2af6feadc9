"""AMBER: free descriptions and yes/no questions about 1,004 images (Wang et al., 2023; Apache-2.0).

The published scorer compares words by the similarity of spaCy vectors on top of its list of related
words. Here a word matches by default if it is the annotated one or is listed as related to it, nothing else,
so no vectors are needed (`docs/benchmarks.md` says what that changes); `similarity="spacy"` does as published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from seewhen.benchmarks import choose
from seewhen.benchmarks.amber import files as amber_files
from seewhen.benchmarks.amber.files import GENERATIVE, load_questions, load_words
from seewhen.benchmarks.amber.nouns import NounReader
from seewhen.benchmarks.amber.prompts import STYLES
from seewhen.benchmarks.amber.related import Words
from seewhen.benchmarks.amber.vectors import RELATED, WordVectors
from seewhen.benchmarks.base import Benchmark, Metric, Options, Row, Sample, Score, make_score, refuse_unknown
from seewhen.benchmarks.sources import SourcePart
from seewhen.benchmarks.sums import Sum, Totals, percent, pool
from seewhen.benchmarks.yesno import Verdict, count_answer, parser_named, yes_no_metrics

ATTRIBUTE = ("state", "number", "action")
PARSERS = ("literal", "strict")


@dataclass(frozen=True)
class Amber(Benchmark):
    """AMBER's samples with their annotations."""

    name: ClassVar = "amber"
    metrics: ClassVar = (
        Metric("amber", "AMBER", 1),
        Metric("chair", "CHAIR", -1),
        Metric("cover", "Cover", 1),
        Metric("hal", "Hal", -1),
        Metric("cog", "Cog", -1),
        Metric("accuracy", "Accuracy", 1),
        Metric("f1", "F1", 1),
    )
    by_part: ClassVar = ("accuracy", "f1")
    styles: ClassVar = STYLES
    options: ClassVar = ("split", "parser", "lemmatizer", "similarity")
    files: ClassVar = tuple(amber_files.FILES.values())
    length_counts: ClassVar = True

    questions: tuple[Sample, ...]
    likely: Mapping[str, tuple[str, ...]]  # generative sample id -> objects a model tends to invent there
    words: Words
    lemmatizer: str = "offline"
    parser: str = "literal"
    similarity: str = RELATED

    @property
    def settings(self) -> dict[str, str]:
        alike = f"related, {self._vectors.name}" if self._vectors else "exact or related"
        return {"parser": self.parser, "lemmatizer": self.lemmatizer, "similarity": alike}

    @cached_property
    def _reader(self) -> NounReader:
        return NounReader(self.lemmatizer, self.words.known)

    @cached_property
    def _vectors(self) -> WordVectors | None:
        return None if self.similarity == RELATED else WordVectors.load(self.similarity)

    def samples(self) -> Sequence[Sample]:
        return self.questions

    def score(self, answers: Mapping[str, str]) -> Score:
        refuse_unknown(answers, (q.id for q in self.questions), self.name)
        rows = self.rows(answers)
        # Whoever answers only one of the two tasks is not missing the other.
        tasks = {row.group == GENERATIVE for row in rows}
        expected = sum((q.split == GENERATIVE) in tasks for q in self.questions)
        return make_score(self, rows, missing=expected - len(rows))

    def rows(self, answers: Mapping[str, str]) -> list[Row]:
        return [self._row(q, answers[q.id]) for q in self.questions if q.id in answers]

    def _row(self, sample: Sample, answer: str) -> Row:
        if sample.split == GENERATIVE:
            return self._describe(sample, answer)
        label = str(sample.truth)
        verdict = self._parse(answer, label)
        counts = count_answer(verdict, label, "no", answer)
        detail = {"label": label, "parsed": verdict, "answer": answer}
        return Row(sample.id, sample.image, sample.split, counts["right"], counts, detail)

    def _parse(self, answer: str, label: str) -> Verdict:
        if self.parser == "literal":  # as published: anything but these two words is wrong
            return "yes" if answer == "Yes" else "no" if answer == "No" else "other"
        return parser_named(self.parser)(answer, label)

    def _describe(self, sample: Sample, answer: str) -> Row:
        truth, likely = tuple(sample.truth), self.likely[sample.id]
        nouns = [noun for noun in self._reader.nouns(answer) if noun in self.words.known]
        covered: set[int] = set()
        invented: set[int] = set()
        unsupported: list[str] = []
        for noun in nouns:
            if noun in self.words.safe:
                continue
            place = self.words.first_match(noun, truth)
            if place is not None:
                covered.add(place)
                continue
            place = self.words.first_match(noun, likely)
            if place is not None:
                invented.add(place)
            if self._vectors is not None:
                # As published: a word may be like something invented and like something that is there.
                place = self.words.first_alike(noun, likely, self._vectors)
                if place is not None:
                    invented.add(place)
                place = self.words.first_alike(noun, truth, self._vectors)
                if place is not None:
                    covered.add(place)
                    continue
            unsupported.append(noun)
        counts = {
            "responses": 1,
            "hallucinated_responses": int(bool(unsupported)),
            "nouns": len(nouns),
            "unsupported": len(unsupported),
            "truth": len(truth),
            "covered": len(covered),
            "likely": len(likely),
            "invented": len(invented),
        }
        detail = {"nouns": nouns, "unsupported": unsupported, "answer": answer}
        return Row(sample.id, sample.image, GENERATIVE, int(not unsupported), counts, detail)

    @classmethod
    def summarise(cls, totals: Totals) -> dict[str, Sum]:
        """CHAIR, Cover, Hal, Cog of descriptions; accuracy, precision, recall, F1 of "no" of questions."""
        metrics: dict[str, Sum] = {}
        if GENERATIVE in totals:
            metrics |= _generative_metrics(totals[GENERATIVE])
        asked = {kind: sums for kind, sums in totals.items() if kind != GENERATIVE}
        if asked:
            metrics |= _discriminative_metrics(pool(asked))
            for kind, sums in asked.items():
                metrics |= _prefixed(kind, _discriminative_metrics(sums, 1e-3 if kind == "existence" else 1e-4))
            if asked.keys() >= set(ATTRIBUTE):
                sums = pool({kind: asked[kind] for kind in ATTRIBUTE})
                metrics |= _prefixed("attribute", _discriminative_metrics(sums))
        if "chair" in metrics and "f1" in metrics:
            metrics = {"amber": (100 - metrics["chair"] + metrics["f1"]) / 2} | metrics
        return metrics

    @classmethod
    def open(cls, folder: Path, options: Options) -> Amber:
        questions, likely = load_questions(folder)
        kinds = list(dict.fromkeys(q.split for q in questions))
        groups = {"attribute": ATTRIBUTE, "discriminative": [k for k in kinds if k != GENERATIVE]}
        wanted = set(choose(options.split, kinds, groups))
        return cls(
            tuple(q for q in questions if q.split in wanted),
            likely,
            load_words(folder),
            options.lemmatizer or cls.lemmatizer,
            options.parser or cls.parser,
            options.similarity or cls.similarity,
        )

    @classmethod
    def downloads(cls, image_list: str | None) -> list[SourcePart]:
        return amber_files.downloads()


def _generative_metrics(sums: Mapping[str, Sum]) -> dict[str, Sum]:
    return {
        "chair": percent(sums["unsupported"], sums["nouns"]),
        "cover": percent(sums["covered"], sums["truth"]),
        "hal": percent(sums["hallucinated_responses"], sums["responses"]),
        "cog": percent(sums["invented"], sums["likely"]),
    }


def _discriminative_metrics(sums: Mapping[str, Sum], epsilon: float = 1e-4) -> dict[str, Sum]:
    metrics = yes_no_metrics(sums)
    # The published F1 has a small number in its denominator: 0.0001, and 0.001 for existence.
    precision, recall = metrics["precision"] / 100, metrics["recall"] / 100
    metrics["f1"] = 100 * 2 * precision * recall / (precision + recall + epsilon)
    return metrics


def _prefixed(kind: str, metrics: Mapping[str, Sum]) -> dict[str, Sum]:
    return {f"{kind}/{name}": value for name, value in metrics.items()}
