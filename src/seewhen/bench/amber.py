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

from seewhen.bench.amber_nouns import NounReader
from seewhen.bench.amber_similarity import RELATED, WordVectors
from seewhen.bench.answers import pick, read_answers, read_json, read_records, read_text
from seewhen.bench.base import Row, Sample, Score, Sum, Totals, make_score, percent, pool, refuse_unknown
from seewhen.bench.prompts import AMBER_STYLES, style_named
from seewhen.bench.yesno import Verdict, count_answer, parser_named, yes_no_metrics
from seewhen.errors import InvalidInput

GENERATIVE = "generative"
# The annotations' own names of the five kinds of question, and ours.
_KINDS = {
    "generative": GENERATIVE,
    "discriminative-hallucination": "existence",
    "discriminative-attribute-state": "state",
    "discriminative-attribute-number": "number",
    "discriminative-attribute-action": "action",
    "discriminative-relation": "relation",
    "relation": "relation",
}
ATTRIBUTE = ("state", "number", "action")
PARSERS = ("literal", "strict")


@dataclass(frozen=True)
class Words:
    """What AMBER knows about words: which are related, and which never count as hallucinated."""

    related: Mapping[str, tuple[str, ...]]
    safe: frozenset[str]

    @cached_property
    def known(self) -> frozenset[str]:
        """Only these nouns are looked at."""
        return frozenset(self.related).union(*self.related.values())

    def first_match(self, noun: str, annotated: Sequence[str]) -> int | None:
        """Which annotated object a noun stands for. As published, words *related* to an object are
        looked through before the objects themselves, so "ground" may be booked on "grass"."""
        for place, word in enumerate(annotated):
            if noun in self.related.get(word, ()):
                return place
        return annotated.index(noun) if noun in annotated else None

    def first_alike(self, noun: str, annotated: Sequence[str], vectors: WordVectors) -> int | None:
        """The same by vectors, in the same order."""
        for place, word in enumerate(annotated):
            if any(vectors.alike(noun, other) for other in self.related.get(word, ())):
                return place
        return next((place for place, word in enumerate(annotated) if vectors.alike(noun, word)), None)


@dataclass(frozen=True)
class Amber:
    """AMBER's samples with their annotations."""

    questions: tuple[Sample, ...]
    likely: Mapping[str, tuple[str, ...]]  # generative sample id -> objects a model tends to invent there
    words: Words
    lemmatizer: str = "offline"
    parser: str = "literal"
    similarity: str = RELATED

    name = "amber"
    default_style = "plain"

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

    def prompt(self, sample: Sample, style: str = default_style) -> str:
        return style_named(AMBER_STYLES, style).text(sample.question)

    def score(self, answers: Mapping[str, str]) -> Score:
        refuse_unknown(answers, (q.id for q in self.questions), self.name)
        rows = [self._row(q, answers[q.id]) for q in self.questions if q.id in answers]
        # Whoever answers only one of the two tasks is not missing the other.
        tasks = {row.group == GENERATIVE for row in rows}
        expected = sum((q.split == GENERATIVE) in tasks for q in self.questions)
        return make_score(self, rows, missing=expected - len(rows))

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

    def summarise(self, totals: Totals) -> dict[str, Sum]:
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


def load_amber(
    folder: Path, lemmatizer: str = "offline", parser: str = "literal", similarity: str = RELATED
) -> Amber:
    """AMBER from its own files, as they lie in its repository or in one flat folder."""
    from seewhen.bench.data import locate

    queries: dict[str, tuple[str, str]] = {}
    for part in (
        "generative",
        "discriminative-attribute",
        "discriminative-existence",
        "discriminative-relation",
    ):
        path = locate(folder, f"amber/query_{part}")
        for number, record in read_records(path):
            key = str(pick(path, number, record, ("id",)))
            queries[key] = str(record["image"]), str(record["query"])
    annotations = locate(folder, "amber/annotations")
    samples, likely = [], {}
    for number, record in read_records(annotations):
        key = str(pick(annotations, number, record, ("id",)))
        kind = _KINDS.get(str(record.get("type")))
        if kind is None or key not in queries:
            raise InvalidInput(
                f"{annotations}, element {number}: unknown type or no query with id {key}.",
                "Take AMBER's file.",
            )
        image, question = queries[key]
        truth = record["truth"]
        if kind == GENERATIVE:
            likely[key] = tuple(record["hallu"])
            truth = tuple(truth)
        samples.append(Sample(key, image, question, truth, kind))
    related = {word: tuple(others) for word, others in read_json(locate(folder, "amber/relation")).items()}
    safe = frozenset(read_text(locate(folder, "amber/safe_words")).split("\n")) - {""}
    return Amber(tuple(samples), likely, Words(related, safe), lemmatizer, parser, similarity)


def load_answers(path: Path) -> dict[str, str]:
    """AMBER's answer form: `id` and `response`."""
    return read_answers(path, ("id", "question_id"))
