"""The answers behind a report: a page for each group of runs, next to the report that links to it.

Every answer is there with its words, its picture, and what is wrong with it; those looked at again (`Look`) also
with risk and maps, for which their models are needed. All is inside the page, pictures small.
"""

from __future__ import annotations

import base64
import io
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seewhen.backbones.pictures import open_image
from seewhen.benchmarks.base import Row
from seewhen.errors import InvalidInput
from seewhen.runs import wording
from seewhen.runs.pictures import open_picture
from seewhen.runs.report import Group, Line
from seewhen.runs.store import Record, Run
from seewhen.showing.viewer.object_words import Verdicts, named_objects
from seewhen.showing.viewer.page import write_page
from seewhen.showing.viewer.payload import FORMAT, Truth
from seewhen.showing.viewer.runs import (
    Load,
    RunPages,
    RunQuestions,
    ShownQuestion,
    questions_of,
    shown_of,
    sorted_by_wrong,
)

_WORDS = re.compile(r"\s*[\w'’-]+|\s*[^\w\s]+|\s+")
_SIDES = ((1000, 256), (None, 128))  # up to so many pictures, so many pixels: a page of thousands stays small


@dataclass(frozen=True)
class Sources:
    """Where the questions and pictures of runs over files are."""

    data: Path | None = None
    images: Path | None = None


@dataclass(frozen=True)
class Look:
    """How many answers of a group are fed through their models again, those with mistakes first."""

    answers: int
    load: Load
    advance: Callable[[int], None] = lambda _: None


def write_answers(
    groups: Sequence[Group], out: Path, sources: Sources | None = None, look: Look | None = None
) -> list[Group]:
    """A page of answers for each group in `out`; returns the groups with its name, for `write_report`."""
    out.mkdir(parents=True, exist_ok=True)
    found = []
    for number, group in enumerate(groups, start=1):
        paged = replace(group, page=f"answers-{number}.html")
        write_page(out / paged.page, answers_page(paged, f"index.html#group-{number}", sources or Sources(), look))
        found.append(paged)
    return found


def answers_page(group: Group, home: str, sources: Sources, look: Look | None = None) -> dict[str, Any]:
    """The payload of one group."""
    runs = [line.run for line in group.lines]
    seed = min(record.seed for record in runs[0].records)
    questions, note = _questions(runs[0], sources)
    shown = _shown(group, seed) if questions is None else shown_of(runs, questions, seed)
    looked = _looked(runs, questions, shown, look)
    truths: dict[str, Truth | None] = {}
    samples = []
    place = {record.id: number for number, record in enumerate(runs[0].records)}
    for each in sorted(shown, key=lambda each: place[each.id]):
        image = each.records[0].image
        if questions is not None and image not in truths:
            truths[image] = questions.truth(questions.tasks[each.id])
        samples.append(looked.get(each.id) or _sample(each, group, questions, truths.get(image)))
    pictures = {} if questions is None else _pictures(questions, shown, looked)
    if questions is not None and len(pictures) + len(looked) == 0:
        note = "The pictures are not where they were. " + note
    left_out = len(runs[0].records) // max(group.facts["seeds"], 1) - len(shown)
    return {
        "format": FORMAT,
        "title": group.title,
        "home": home,
        "order": "mistakes",
        "runs": [{"label": line.label, "note": _line(line, group)} for line in group.lines],
        "common": {"model": str(group.facts["model"]), "about": {"decoding": group.facts["decoding"]}},
        "pictures": pictures,
        "samples": samples,
        "why": _why(runs, questions, sources, seed),
        "rest": _rest(group, len(shown), left_out, seed, note),
    }


def _questions(run: Run, sources: Sources) -> tuple[RunQuestions | None, str]:
    """The questions of a run, or why the page has to do without them."""
    try:
        return questions_of(run, sources.data, sources.images), ""
    except InvalidInput as error:
        return None, f"Questions and pictures are missing. {error}"


def _shown(group: Group, seed: int) -> list[ShownQuestion]:
    """What is known without the questions: which answers are right."""
    per_run = []
    for line in group.lines:
        rights = {id_: outcomes[0] for id_, outcomes in line.scored.right.items()}
        records = {r.id: r for r in line.run.records if r.seed == seed and not r.error}
        per_run.append(
            {
                id_: (records[id_], Row(id_, line.scored.cluster[id_], "", right, {}))
                for id_, right in rights.items()
                if right is not None and id_ in records
            }
        )
    return sorted_by_wrong(per_run)


def _looked(
    runs: Sequence[Run], questions: RunQuestions | None, shown: Sequence[ShownQuestion], look: Look | None
) -> dict[str, dict[str, Any]]:
    if look is None or questions is None or not look.answers:
        return {}
    pages = RunPages(runs, questions, look.load)
    found = {}
    for each in shown[: look.answers]:
        found[each.id] = pages.page(each)
        look.advance(1)
    return found


def _sample(
    each: ShownQuestion, group: Group, questions: RunQuestions | None, truth: Truth | None
) -> dict[str, Any]:
    labels = [line.label for line in group.lines]
    return {
        "id": each.id,
        "part": each.rows[0].group,
        "note": each.note(labels),
        "prompt": "" if questions is None else questions.tasks[each.id].prompt,
        "images": [each.records[0].image],
        "truth": None if truth is None else list(truth.objects),
        "answers": [_light(record, truth) | each.judged(place) for place, record in enumerate(each.records)],
    }


def _light(record: Record, truth: Truth | None) -> dict[str, Any]:
    """An answer as words, with the objects that some of them name and what the method itself told of them."""
    words = _WORDS.findall(record.answer)
    light: dict[str, Any] = {"words": words, "tokens": record.tokens}
    if record.told:
        verdicts = Verdicts(words, record.told)
        light["asked"] = {**verdicts.summary(), "of_words": {str(n): v for n, v in verdicts.of_words().items()}}
    if truth is not None:
        named = named_objects(words, truth.objects)
        light["objects"] = {
            str(index): [each.name, each.present] for each in named for index in range(each.start, each.end)
        }
    return light


def _pictures(
    questions: RunQuestions, shown: Sequence[ShownQuestion], looked: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The pictures of all but those looked at again, which have their own."""
    tasks = {questions.tasks[each.id].image: questions.tasks[each.id] for each in shown if each.id not in looked}
    side = next(side for most, side in _SIDES if most is None or len(tasks) <= most)
    found = {}
    for name, task in tasks.items():
        try:
            picture = open_image(open_picture(task.source))
        except InvalidInput:
            continue  # the file is gone: its answers are shown without it
        picture.thumbnail((side, side))
        buffer = io.BytesIO()
        picture.save(buffer, "webp", quality=75)
        source = f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
        found[name] = {"src": source, "width": picture.width, "height": picture.height}
    return found


def _line(line: Line, group: Group) -> str:
    """What a run scored, above its answers."""
    scores = [f"{metric.title} {wording.measured(line.metrics[metric.name])}" for metric in group.metrics]
    return f"{wording.title(line.label)}: {', '.join(scores)}. Run {line.run.path.name}."


def _why(runs: Sequence[Run], questions: RunQuestions | None, sources: Sources, seed: int) -> str:
    """The command that shows one answer, from where the report was made; the page fills in ID."""
    flags = {"--data": sources.data, "--images": sources.images, "--seed": seed or None}
    if questions is None:
        flags["--data"] = Path("FOLDER")
    given = [word for flag, value in flags.items() if value is not None for word in (flag, str(value))]
    names = shlex.join([*(str(run.path) for run in runs[:2]), *given])
    return f"Words only. Maps: `seewhen view {names} --sample ID`, or a report with --look."


def _rest(group: Group, shown: int, left_out: int, seed: int, note: str) -> str:
    said = [f"{shown} questions that all runs answered."]
    if left_out > 0:
        said.append(f"{left_out} are left out: a run has no answer to them.")
    if group.facts["seeds"] > 1:
        said.append(f"Answers of seed {seed}; the scores are means over {group.facts['seeds']}.")
    return " ".join([*said, note]).strip()
