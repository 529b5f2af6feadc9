"""POPE's question and answer files, in every published form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.records import pick, pick_text, read_answers, read_records
from seewhen.errors import InvalidInput

SETS = ("coco", "aokvqa", "gqa")
KINDS = ("random", "popular", "adversarial")
SPLITS = tuple(f"{name}-{kind}" for name in SETS for kind in KINDS)
_IDS = {"question_id", "id"}


def load_questions(path: Path, split: str | None = None) -> tuple[Sample, ...]:
    """Questions in any published form: JSON lines, a JSON array, or PAI's records of six questions."""
    return questions_from(read_records(path), split or split_of_file(path), path)


def questions_from(records: Iterable[tuple[int, Mapping[str, Any]]], split: str, path: Path) -> tuple[Sample, ...]:
    """Questions from numbered records; `path` is named in errors."""
    samples: list[Sample] = []
    for number, record in records:
        for question_id, text, label in _questions_in(path, number, record, len(samples)):
            image = str(pick(path, number, record, ("image", "image_source")))
            samples.append(Sample(f"{split}/{question_id}", image, text, label, split))
    _refuse_repeated_ids(path, samples)
    return tuple(samples)


def split_of_file(path: Path) -> str:
    """ "coco-random" from "coco_pope_random.json" or "coco_pope_chat_random.json"; else the file's stem."""
    stem = path.name.split(".")[0]
    words = stem.split("_")
    if words[0] in SETS and words[-1] in KINDS:
        return f"{words[0]}-{words[-1]}"
    return stem


def _questions_in(path: Path, number: int, record: Mapping[str, Any], already: int) -> list[tuple[str, str, str]]:
    texts = pick(path, number, record, ("text", "question"))
    labels = pick(path, number, record, ("label", "answer"))
    if isinstance(texts, list):  # PAI: one record holds the six questions of an image, and no question ids
        if not isinstance(labels, list) or len(labels) != len(texts):
            raise InvalidInput(
                f"{path}, line {number}: {len(texts)} questions but not as many labels.",
                "PAI's form has two lists of equal length, text and label.",
            )
        ids = [str(already + k + 1) for k in range(len(texts))]
    else:
        texts, labels = [texts], [labels]
        ids = [str(record.get("question_id", already + 1))]
    checked = []
    for question_id, text, label in zip(ids, texts, labels, strict=True):
        if not isinstance(text, str) or str(label).lower() not in ("yes", "no"):
            raise InvalidInput(
                f"{path}, line {number}: the label {label!r} is neither yes nor no.",
                "This does not look like a POPE question file.",
            )
        checked.append((question_id, text, str(label).lower()))
    return checked


def _refuse_repeated_ids(path: Path, samples: Sequence[Sample]) -> None:
    seen: set[str] = set()
    for sample in samples:
        if sample.id in seen:
            raise InvalidInput(
                f"{path} has the question_id {sample.id.removeprefix(sample.split)[1:]} twice.",
                "Number the questions apart.",
            )
        seen.add(sample.id)
    if not samples:
        raise InvalidInput(f"{path} holds no questions.", "Each line must be one JSON object.")


def load_answers(path: Path, questions: Sequence[Sample]) -> dict[str, str]:
    """Answers to the questions of one split, by sample id.

    Records carry a `question_id`, or the `id` of a run; those of POPE's own script have neither and follow the
    order of the questions, which is accepted when there are exactly as many.
    """
    split = questions[0].split
    records = read_records(path)
    if any(_IDS & record.keys() for _, record in records) or len(records) != len(questions):
        given = read_answers(path, ("question_id", "id"))
        return {key if "/" in key else f"{split}/{key}": text for key, text in given.items()}
    answers = {}
    for (number, record), sample in zip(records, questions, strict=True):
        asked = record.get("question", sample.question)
        if sample.question not in str(asked):
            raise InvalidInput(
                f"{path}, line {number}: answers {asked!r}, but question {number} is {sample.question!r}.",
                "Answers without question_id must follow the order of the questions.",
            )
        answers[sample.id] = pick_text(path, number, record)
    return answers
