"""Reading records that other programs wrote: JSON lines or a JSON array, with errors that name the line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput
from seewhen.reading import parse_json, read_text

# What the answer is called by POPE's script, LLaVA, AMBER, the CHAIR scorers and others.
TEXT_KEYS = ("text", "answer", "response", "caption", "output")


def read_records(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file or of a JSON array, each with its line (or its position, from 1)."""
    text = read_text(path)
    if text.lstrip().startswith("["):
        return list(_array(path, text))
    return list(_lines(path, text))


def _array(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for position, item in enumerate(parse_json(text, str(path)), start=1):
        if not isinstance(item, dict):
            raise InvalidInput(f"{path}, element {position}: not a JSON object.", "Each must be an object.")
        yield position, item


def _lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Only a real line feed ends a line: answers may hold any other Unicode line separator.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        item = parse_json(line, f"{path}, line {number}", "Each line must be one JSON object.")
        if not isinstance(item, dict):
            raise InvalidInput(f"{path}, line {number}: not a JSON object.", "Each line must be one object.")
        yield number, item


def pick(path: Path, number: int, record: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The first of several names a field goes by."""
    for key in keys:
        if record.get(key) is not None:
            return record[key]
    raise InvalidInput(
        f"{path}, line {number}: none of the fields {', '.join(keys)} is there.",
        f"The line has: {', '.join(record) or 'nothing'}.",
    )


def pick_text(path: Path, number: int, record: Mapping[str, Any]) -> str:
    """The model's answer in a record."""
    text = pick(path, number, record, TEXT_KEYS)
    if not isinstance(text, str):
        raise InvalidInput(f"{path}, line {number}: the answer is not text.", "Write it as a JSON string.")
    return text


def read_answers(path: Path, id_keys: Sequence[str]) -> dict[str, str]:
    """Answers by id, in the order of the file. An id that occurs twice is an error, not a coin toss.

    What a run could not answer is none: it has an `error` in the place of the answer."""
    answers: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, record in read_records(path):
        if record.get("error") and record.keys().isdisjoint(TEXT_KEYS):
            continue
        key = str(pick(path, number, record, id_keys))
        if key in answers:
            raise InvalidInput(
                f"{path}, line {number}: {id_keys[0]} {key} was already answered in line {lines[key]}.",
                "Keep one answer for each; an append-mode log may hold two runs.",
            )
        answers[key] = pick_text(path, number, record)
        lines[key] = number
    if not answers:
        raise InvalidInput(f"{path} holds no answers.", "Each line must be one JSON object.")
    return answers
