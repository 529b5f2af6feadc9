"""Verdicts for a file of answers, line by line. A run that was ended goes on where its file ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from seewhen.benchmarks.records import pick, pick_text, read_records
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.reading import parse_json
from seewhen.runs.folders import IMAGE_KEYS
from seewhen.runs.progress import Progress
from seewhen.runs.store import RunConflict, config_differences
from seewhen.served.server import ServerFailed

Judge = Callable[[Path, str], Mapping[str, Any]]
Line = dict[str, Any]


@dataclass(frozen=True)
class Answered:
    """A text about an image, as a line of the file has it."""

    image: str
    text: str


def read_answered(path: Path) -> list[Answered]:
    """JSON lines (or an array) with image and text; the text may go by the usual other names."""
    found = []
    for number, record in read_records(path):
        image = pick(path, number, record, IMAGE_KEYS)
        if not isinstance(image, str):
            raise InvalidInput(f"{path}, line {number}: the image is not text.", "Give the name of a file.")
        found.append(Answered(image, pick_text(path, number, record)))
    if not found:
        raise InvalidInput(f"{path} holds no answers.", "Each line must be one JSON object: image and text.")
    return found


def check_all(answers: Sequence[Answered], folder: Path, judge: Judge, by: Mapping[str, Any]) -> Iterator[Line]:
    """A line for each answer; `by` says how it was judged. What cannot be checked says why."""
    for answer in answers:
        try:
            found = judge(folder / answer.image, answer.text)
        except ServerFailed:
            raise  # which is not for this answer alone: the same command goes on when it is back
        except SeewhenError as error:
            found = {"text": answer.text, "error": str(error)}
        yield {"image": answer.image, **found, "by": dict(by)}


def check_into(
    out: Path, answers: Sequence[Answered], folder: Path, judge: Judge, by: Mapping[str, Any]
) -> list[Line]:
    """As `check_all`, appended to `out` line by line; returns all lines, those of earlier runs included."""
    with _opened(out) as file:
        lines = _taken_up(file, out, answers, by)
        with Progress("check", len(answers), already=len(lines)) as progress:
            for line in check_all(answers[len(lines) :], folder, judge, by):
                file.write(json.dumps(line, ensure_ascii=False, allow_nan=False).encode("utf-8") + b"\n")
                file.flush()
                os.fsync(file.fileno())
                lines.append(line)
                progress.advance(1)
    return lines


@contextmanager
def _opened(out: Path) -> Iterator[IO[bytes]]:
    lock = FileLock(out.with_name(f".{out.name}.lock"), blocking=False)
    try:
        with lock, open(out, "a+b") as file:
            yield file
    except Timeout:
        raise RunConflict(f"Another process is writing to {out}.", "Wait for it, or name another file.") from None


def _taken_up(file: IO[bytes], out: Path, answers: Sequence[Answered], by: Mapping[str, Any]) -> list[Line]:
    """The whole lines that are there, held against what is asked now; a torn last one is cut off."""
    file.seek(0)
    *whole, torn = file.read().split(b"\n")
    lines: list[Line] = []
    for place, raw in enumerate(whole):
        line = parse_json(
            raw.decode("utf-8", "replace"), f"{out}, line {place + 1}", "Name another file for --out."
        )
        _check_line(line, out, place, answers, by)
        lines.append(line)
    file.truncate(file.tell() - len(torn))
    return lines


def _check_line(line: Any, out: Path, place: int, answers: Sequence[Answered], by: Mapping[str, Any]) -> None:
    own = isinstance(line, dict) and place < len(answers)
    if not own or (line.get("image"), line.get("text")) != (answers[place].image, answers[place].text):
        raise RunConflict(
            f"{out}, line {place + 1}, does not belong to answer {place + 1}.", "Name another file for --out."
        )
    different = config_differences(line.get("by") or {}, by)
    if different:
        raise RunConflict(f"{out} was made otherwise: {'; '.join(different)}.", "Name another file for --out.")
