"""MME's question and answer files: its release, its tool's result files, and LLaVA's form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.records import pick, pick_text, read_records
from seewhen.errors import InvalidInput
from seewhen.reading import read_text

# The hallucination subset: existence and count (objects), position and color (attributes); 800 points.
HALLUCINATION = ("existence", "count", "position", "color")
PERCEPTION = (*HALLUCINATION, "posters", "celebrity", "scene", "landmark", "artwork", "OCR")
COGNITION = ("commonsense_reasoning", "numerical_calculation", "text_translation", "code_reasoning")
SUBTASKS = (*PERCEPTION, *COGNITION)
QUESTIONS = dict(zip(SUBTASKS, (60, 60, 60, 60, 294, 340, 400, 400, 400, 40, 140, 40, 40, 40), strict=True))

# Sentences that ask for a form of answer; a question is recognised without them.
_ASKS_FOR_FORM = re.compile(r"(?:Please answer yes or no|Answer the question using a single word)\b")


def bare_question(text: str) -> str:
    """The question without the sentence that asks for a form of answer, spaces normalised."""
    return " ".join(_ASKS_FOR_FORM.split(text, maxsplit=1)[0].split())


def load_folder(folder: Path, subtasks: Sequence[str] = SUBTASKS) -> tuple[Sample, ...]:
    """Questions from MME's release (one folder per subtask) or from the tool's files (one per subtask)."""
    samples: list[Sample] = []
    for subtask in subtasks:
        if (folder / f"{subtask}.txt").is_file():
            samples += [sample for sample, _ in _read_table(folder / f"{subtask}.txt")]
        elif (folder / subtask).is_dir():
            samples += _read_release(folder / subtask)
    if not samples:
        raise InvalidInput(
            f"{folder} holds no MME subtask.",
            f"Expected are folders or text files named {', '.join(subtasks[:3])} ... as MME is distributed.",
        )
    return tuple(samples)


def load_results(folder: Path) -> tuple[tuple[Sample, ...], dict[str, str]]:
    """Questions and answers from the tool's own result files: image, question, truth, response."""
    samples: list[Sample] = []
    answers: dict[str, str] = {}
    for subtask in SUBTASKS:
        path = folder / f"{subtask}.txt"
        if not path.is_file():
            continue
        for sample, response in _read_table(path):
            samples.append(sample)
            if response is None:
                raise InvalidInput(
                    f"{path}: the answer to {sample.question!r} ({sample.image}) is missing.",
                    "Result lines have four columns: image, question, Yes or No, response.",
                )
            answers[sample.id] = response
    if not samples:
        raise InvalidInput(
            f"{folder} holds no MME result file.",
            f"Expected are {', '.join(SUBTASKS[:3])} ... each with .txt.",
        )
    return tuple(samples), answers


def _read_table(path: Path) -> Iterable[tuple[Sample, str | None]]:
    asked: dict[str, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        columns = line.rstrip("\r").split("\t", 3)
        if len(columns) < 3 or columns[2].strip().lower() not in ("yes", "no"):
            raise InvalidInput(
                f"{path}, line {number}: not 'image, question, Yes or No, response' separated by tabs.",
                "A response must stay on one line.",
            )
        image, question, truth = (column.strip() for column in columns[:3])
        asked[image] = asked.get(image, 0) + 1
        sample = _sample(path.stem, f"{path.stem}/{image}", asked[image], question, truth)
        yield sample, columns[3] if len(columns) == 4 else None


def _read_release(folder: Path) -> list[Sample]:
    inner = folder / "questions_answers_YN"
    questions = inner if inner.is_dir() else folder
    images = folder / "images" if (folder / "images").is_dir() else folder
    inside = folder.parent
    names = {p.stem: p.relative_to(inside).as_posix() for p in images.iterdir() if p.suffix != ".txt"}
    samples = []
    for path in sorted(questions.glob("*.txt")):
        lines = [line for line in read_text(path).splitlines() if line.strip()]
        for number, line in enumerate(lines, start=1):
            question, tab, truth = line.strip().rpartition("\t")
            if not tab or truth.lower() not in ("yes", "no"):
                raise InvalidInput(
                    f"{path}, line {number}: not 'question, Yes or No' separated by a tab.",
                    "Unpack MME again.",
                )
            samples.append(
                _sample(folder.name, names.get(path.stem, f"{folder.name}/{path.stem}"), number, question, truth)
            )
    return samples


def questions_from(records: Iterable[tuple[str, Mapping[str, Any]]]) -> tuple[Sample, ...]:
    """Questions from `(subtask, {image, question, answer})`."""
    asked: dict[tuple[str, str], int] = {}
    samples = []
    for subtask, record in records:
        image = record["image"]
        number = asked[subtask, image] = asked.get((subtask, image), 0) + 1
        samples.append(_sample(subtask, image, number, record["question"], record["answer"]))
    return tuple(samples)


def _sample(subtask: str, image: str, number: int, question: str, truth: str) -> Sample:
    """`image` is the path below MME's folder: subtasks use the same file names for different pictures."""
    return Sample(f"{subtask}/{image.split('/')[-1]}#{number}", image, question, truth.lower(), subtask)


def load_llava_answers(path: Path, questions: Sequence[Sample]) -> dict[str, str]:
    """Answers in LLaVA's form (`question_id`, `prompt`, `text`): the question is found by its wording."""
    by_wording = {_wording(q.split, q.image, q.question): q.id for q in questions}
    answers: dict[str, str] = {}
    for number, record in read_records(path):
        name = str(pick(path, number, record, ("question_id", "image")))
        subtask, _, image = name.partition("/")
        prompt = str(pick(path, number, record, ("prompt", "question")))
        found = by_wording.get(_wording(subtask, image, prompt))
        if found is None:
            raise InvalidInput(
                f"{path}, line {number}: MME does not ask {bare_question(prompt)!r} about {name}.",
                "Check that the questions are those of the same release.",
            )
        if found in answers:
            raise InvalidInput(f"{path}, line {number}: {found} was already answered.", "Keep one answer.")
        answers[found] = pick_text(path, number, {k: v for k, v in record.items() if k != "question"})
    return answers


def _wording(subtask: str, image: str, question: str) -> tuple[str, str, str]:
    return subtask, image.split("/")[-1].split(".")[0], bare_question(question)
