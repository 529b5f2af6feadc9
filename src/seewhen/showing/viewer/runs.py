"""Pages of runs: recorded answers, fed through the run's model and method again to see where they looked.

A run keeps no traces. With several runs of the same questions their answers stand side by side.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.asking.asker import Asker, Question
from seewhen.asking.opening import collected_warnings, plain_errors
from seewhen.benchmarks import SCENES
from seewhen.benchmarks.base import Benchmark, Row, content_checksum
from seewhen.errors import InvalidInput
from seewhen.methods import method as make_method
from seewhen.methods import method_from_json
from seewhen.methods.grammar import label_of
from seewhen.runs.evaluate import Ask, make_tasks
from seewhen.runs.pictures import SCENE, open_picture
from seewhen.runs.store import Record, Run, check_run, read_run
from seewhen.runs.work import Task
from seewhen.showing.viewer.page import image_payload
from seewhen.showing.viewer.payload import Truth, answer_facts, answer_maps, attention_layers, page_payload

if TYPE_CHECKING:
    from seewhen.decoding.method import Method
    from seewhen.decoding.trace import Trace

_USUAL_SCENES = 500
Load = Callable[[str], tuple[Any, Any]]


@dataclass(frozen=True)
class RunQuestions:
    """What the runs were asked."""

    benchmark: Benchmark
    tasks: Mapping[str, Task]
    raw: bool  # the prompts are complete: no chat template

    def truth(self, task: Task) -> Truth | None:
        """What the picture of a task shows, where that is known."""
        if task.source.startswith(SCENE):
            from seewhen.scenes import scene_named

            return Truth(scene_named(task.image).names)
        known = self.benchmark.shown(task.image)
        return None if known is None else Truth(known)


@dataclass(frozen=True)
class ShownQuestion:
    """One question with what each run answered."""

    id: str
    records: tuple[Record, ...]
    rows: tuple[Row, ...]

    @property
    def wrong(self) -> int:
        """How much is wrong with the answers: things invented, questions answered wrongly."""
        return sum(_wrong(row) for row in self.rows)

    def judged(self, place: int) -> dict[str, Any]:
        """How much is wrong with one of the answers, and that in words."""
        facts = self.records[place].facts
        denied = {"denied": 1} if facts.get("taken_back") or facts.get("denied") else {}
        return {"wrong": _wrong(self.rows[place]), "note": _note(self.rows[place]), **denied}

    def note(self, labels: Sequence[str]) -> str:
        """That in words."""
        notes = [_note(row) for row in self.rows]
        if len(set(notes)) == 1:
            return notes[0]
        return "; ".join(f"{label} {note}" for label, note in zip(labels, notes, strict=True))


def _wrong(row: Row) -> int:
    invented = row.detail.get("hallucinated") or row.detail.get("unsupported") or ()
    return max(len(set(invented)), 1 - int(row.right))


def _note(row: Row) -> str:
    if "parsed" in row.detail:
        verdict = "rightly" if row.right else "wrongly"
        return f"says {str(row.detail['answer'])[:24]}, {verdict}"
    if not row.detail:
        return "right" if row.right else "wrong"
    invented = row.detail.get("hallucinated") or row.detail.get("unsupported") or ()
    return f"invents {', '.join(dict.fromkeys(invented))}" if invented else "invents nothing"


def questions_of(
    run: Run, data: Path | None = None, images: Path | None = None, scenes: int | None = None
) -> RunQuestions:
    """The benchmark of a run and its prompts, made again; refused where they are not the run's own."""
    asked = run.config["benchmark"]
    if asked["data"] != "scenes" and data is None:
        raise InvalidInput(
            f"{run.path} asked {asked['name']} from files.", "Say where they are with --data (and --images)."
        )
    settings = asked["settings"]
    ask = Ask(
        asked["name"],
        data=SCENES if asked["data"] == "scenes" else str(data),
        split=asked["split"],
        style=asked["style"],
        parser=settings.get("parser"),
        lemmatizer=settings.get("lemmatizer"),
        images=None if images is None else str(images),
    )
    pictures = {record.image for record in run.records}
    for count in [scenes] if scenes else _counts(run) if asked["data"] == "scenes" else [_USUAL_SCENES]:
        ask = dataclasses.replace(ask, scenes=count)
        benchmark = ask.load()
        samples = list(benchmark.samples())
        # A sweep asks about some of the images only.
        for part in (samples, [sample for sample in samples if sample.image in pictures]):
            if content_checksum(part) == asked["questions"]:
                tasks = {task.id: task for task in make_tasks(ask, benchmark, part)}
                return RunQuestions(benchmark, tasks, ask.style_of(benchmark)[1].wrapper is not None)
    hint = (
        "Give the number of scenes it was made with: --scenes N."
        if asked["data"] == "scenes"
        else ("Give the folder it was made with: --data.")
    )
    raise InvalidInput(f"The questions of {run.path} cannot be made again.", hint)


def _counts(run: Run) -> list[int]:
    """How many scenes a run may have been over: the manifest does not say, its checksum tells which is right."""
    said = str(run.config["benchmark"]["settings"].get("images", ""))
    highest = max((int(r.image.removesuffix(".png").split("_")[-1]) for r in run.records), default=0)
    return [*([int(said)] if said.isdigit() else []), _USUAL_SCENES, *range(highest + 1, highest + 9)]


def shown_of(runs: Sequence[Run], questions: RunQuestions, seed: int = 0) -> list[ShownQuestion]:
    """All questions that every run answered, those with the most wrong in their answers first."""
    per_run = []
    for run in runs:
        records = {r.id: r for r in run.records if r.seed == seed and not r.error and r.id in questions.tasks}
        score = questions.benchmark.score({id_: record.answer for id_, record in records.items()})
        per_run.append({row.id: (records[row.id], row) for row in score.rows if row.id in records})
    return sorted_by_wrong(per_run)


def sorted_by_wrong(per_run: Sequence[Mapping[str, tuple[Record, Row]]]) -> list[ShownQuestion]:
    """The questions that are in every run, those with the most wrong in their answers first."""
    common = [id_ for id_ in per_run[0] if all(id_ in other for other in per_run[1:])]
    found = [
        ShownQuestion(
            id_, tuple(answers[id_][0] for answers in per_run), tuple(answers[id_][1] for answers in per_run)
        )
        for id_ in common
    ]
    return sorted(found, key=lambda each: -each.wrong)  # stable: else in the order of the run


def check_together(runs: Sequence[Run]) -> None:
    """Refuse runs that did not ask the same questions."""
    first = runs[0].config["benchmark"]
    for run in runs[1:]:
        other = run.config["benchmark"]
        if (first["name"], first["questions"], first["style"]) != (
            other["name"],
            other["questions"],
            other["style"],
        ):
            raise InvalidInput(
                f"{runs[0].path.name} and {run.path.name} asked different questions.", "View them one by one."
            )


class RunPages:
    """Makes the traces of recorded answers: one model and method for each run."""

    def __init__(self, runs: Sequence[Run], questions: RunQuestions, load: Load) -> None:
        self._questions = questions
        self._labels = _labels(runs)
        self._most = [int(run.config["decoding"]["max_new_tokens"]) for run in runs]
        models = {name: load(name) for name in dict.fromkeys(str(run.config["model"]["name"]) for run in runs)}
        askers = {name: Asker(loaded) for name, loaded in models.items()}
        self._askers = [askers[str(run.config["model"]["name"])] for run in runs]
        self._methods: list[Method] = []
        self.notes: list[str] = []
        for run, asker in zip(runs, self._askers, strict=True):
            method = method_from_json(run.config["method"]).prepare(asker.tokenizer)
            if method.beams_only or method.samples_only:
                how = "searches over beams" if method.beams_only else "rejects samples"
                self.notes.append(f"{method.name} {how}: its answers are shown as regular decoding sees them")
                method = make_method("regular")
            self._methods.append(method)
        model = runs[0].config["model"]
        self._about = {"decoding": runs[0].config["decoding"]["mode"], "dtype": model["dtype"]}
        self._model = ", ".join(models)

    def page(self, shown: ShownQuestion, verdicts: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
        """The payload of one question. `verdicts` on each answer: the recorded ones unless given."""
        judged = [record.told for record in shown.records] if verdicts is None else verdicts
        task = self._questions.tasks[shown.id]
        image = open_picture(task.source)
        truth = self._questions.truth(task)
        traces = [
            dataclasses.replace(self._trace(place, record, task, image), told=(dict(said),) if said else ())
            for place, (record, said) in enumerate(zip(shown.records, judged, strict=True))
        ]
        layers = attention_layers(traces)
        answers = []
        for place, (trace, record) in enumerate(zip(traces, shown.records, strict=True)):
            special = self._askers[place].special
            facts = answer_facts(
                trace, label=self._labels[place], text=record.answer, special=special, truth=truth
            )
            answers.append({**facts, **shown.judged(place), "maps": answer_maps(trace, layers)})
        page = page_payload(
            answers,
            [image_payload(image, task.image)],
            model=self._model,
            prompt=task.prompt,
            truth=truth,
            about=self._about,
        )
        told = {"id": shown.id, "part": shown.rows[0].group, "note": shown.note(self._labels)}
        return {**page, **told, "wrong": shown.wrong}

    def _trace(self, place: int, record: Record, task: Task, image: Any) -> Trace:
        asker = self._askers[place]
        question = Question(asker.prompt(task.prompt, raw=self._questions.raw), (image,))
        ids = asker.recorded(record.answer, record.tokens, self._most[place])
        with plain_errors(), collected_warnings():
            whole = asker.replayed([question], [ids], self._methods[place])
        # Nobody looks at the whole vocabulary.
        kept = {name: tensor for name, tensor in whole.tensors.items() if name not in ("logits", "scores")}
        return asker.placed(dataclasses.replace(whole, tensors=kept), [[image.size]])


def _labels(runs: Sequence[Run]) -> list[str]:
    """What tells the runs apart: the methods, or the directories where those are the same."""
    labels = [label_of(run.config["method"]) for run in runs]
    return labels if len(set(labels)) == len(labels) else [run.path.name for run in runs]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs of some directories."""
    runs = [check_run(read_run(path)) for path in paths]
    for run in runs:
        if not any(not record.error for record in run.records):
            raise InvalidInput(
                f"{run.path} holds no answer.", "Let it go on: run its `seewhen eval` command again."
            )
    check_together(runs)
    return runs
