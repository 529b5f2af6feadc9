"""`seewhen try`: several methods on somebody's own pictures, and what the model says when it is asked.

Every method has a run directory of its own (`store.py`), and so have the questions. What they hold depends on
neither the list of methods nor the list of pictures, so either may grow and nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from seewhen.asking.options import DESCRIBE
from seewhen.decoding.method import Method
from seewhen.errors import InvalidInput, InvalidMethod, UnsupportedMode, UnsupportedModel
from seewhen.methods.grammar import choose, label
from seewhen.runs.engine import Plan, Pool, run
from seewhen.runs.evaluate import (
    Ask,
    Machine,
    answering,
    check_mode,
    environment,
    image_backend,
    model_facts,
    run_name,
)
from seewhen.runs.folders import Photo
from seewhen.runs.progress import Progress
from seewhen.runs.served import Threads
from seewhen.runs.store import Record, Run, RunStore, read_run
from seewhen.runs.versions import package_versions
from seewhen.runs.work import Maker, Task
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.reader import read_mentions

REGULAR = "regular"


@dataclass(frozen=True)
class Judging:
    """Which words are objects and what counts as confirmed, as `seewhen.check` has it."""

    lexicon: str = "open"
    verdict: str = "auto"
    threshold: float | None = None


@dataclass(frozen=True)
class Trial:
    """What is asked of whom, and how: everything but methods and pictures. `ask.seeds` is None or 1."""

    ask: Ask
    prompt: str = DESCRIBE
    seed: int = 0
    judging: Judging = field(default_factory=Judging)

    @property
    def tokens(self) -> int:
        """Of the longest answer."""
        return self.ask.max_new_tokens or 64

    @property
    def seeds(self) -> tuple[int]:
        """The one of sampling; greedy decoding has none, and is recorded as 0."""
        return (self.seed if self.ask.sampled else 0,)

    def config(self, model: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, Any]:
        """What must stay the same for answers to belong to one run."""
        sampled = {"temperature": self.ask.temperature, "seed": self.seed} if self.ask.sampled else {}
        mode = "sample" if self.ask.sampled else "greedy"
        return {
            "benchmark": {"name": "try", "data": "files", "split": None, "prompt": self.prompt},
            "model": dict(model),
            "method": dict(method),
            "decoding": {"mode": mode, **sampled, "max_new_tokens": self.tokens},
            "image_backend": image_backend(),
            "versions": package_versions(),
        }


@dataclass(frozen=True)
class Tries:
    """What came of it. `answers`: by method (regular first) and picture; `asked`: by picture and object."""

    trial: Trial
    photos: tuple[Photo, ...]  # those with an answer
    failed: Mapping[str, str]  # name -> why it was skipped
    runs: Mapping[str, Run]
    answers: Mapping[str, Mapping[str, Record]]
    asked: Mapping[str, Mapping[str, Record]]
    asking: Run | None  # None where the model cannot be asked
    notes: tuple[str, ...] = ()


def methods_of(text: str, settings: Sequence[str] = ()) -> list[Method]:
    """The methods that are tried, regular decoding always and first: the others are held against it."""
    from seewhen.methods.grammar import split_methods

    chosen = choose(split_methods(text), settings)
    return [*choose([REGULAR]), *(method for method in chosen if label(method) != REGULAR)]


def try_all(
    trial: Trial, methods: Sequence[Method], photos: Sequence[Photo], out: Path, machine: Machine | None = None
) -> Tries:
    """All methods on all pictures, then the questions; goes on where it was stopped."""
    machine = machine or Machine()
    lexicon_named(trial.judging.lexicon)  # what is wrong with it is told before a model is loaded
    model = model_facts(trial.ask, machine.device)
    runner = _Runner(trial, photos, out, machine, model)
    runs, notes = runner.answers(methods)
    answers = {name: runner.records(found) for name, found in runs.items()}
    errors = {photo: answers[REGULAR][photo.name].error for photo in photos}
    failed = {photo.name: _reason(error, photo) for photo, error in errors.items() if error}
    good = tuple(photo for photo in photos if photo.name not in failed)
    if not good:
        first, why = next(iter(failed.items()))
        raise InvalidInput(f"Not one of {len(photos)} pictures can be read, {first} because: {why}")
    try:
        asked, asking = runner.asked(good, answers)
    except (UnsupportedMode, UnsupportedModel) as error:
        asked, asking = {}, None
        notes.append(f"The model was not asked about what it named: {error}")
    return Tries(trial, good, failed, runs, answers, asked, asking, tuple(notes))


@dataclass(frozen=True)
class _Runner:
    trial: Trial
    photos: Sequence[Photo]
    out: Path
    machine: Machine
    model: Mapping[str, Any]

    def answers(self, methods: Sequence[Method]) -> tuple[dict[str, Run], list[str]]:
        """The run of each method; one that cannot be used here is left out, with a note."""
        tasks = [Task(photo.id, photo.name, str(photo.path), self.trial.prompt) for photo in self.photos]
        runs: dict[str, Run] = {}
        notes: list[str] = []
        with Progress("answers", len(methods) * len(tasks)) as progress:
            for method in methods:
                try:
                    runs[label(method)] = self._run(method, tasks, progress)
                except (InvalidMethod, UnsupportedMode, UnsupportedModel) as error:
                    if label(method) == REGULAR:
                        raise
                    notes.append(f"{label(method)} is left out: {error}")
                    progress.skip(len(tasks))
        return runs, notes

    def _run(self, method: Method, tasks: Sequence[Task], progress: Progress) -> Run:
        check_mode(self.trial.ask, method)
        known = {"label": label(method), "fingerprint": method.fingerprint, **method.to_json()}
        config = self.trial.config(self.model, known)
        pool, batch = answering(self.trial.ask, method, self.machine, self.trial.tokens)
        return self._done(config, pool, tasks, progress, batch)

    def _done(
        self, config: Mapping[str, Any], pool: Pool, tasks: Sequence[Task], progress: Progress, batch: int
    ) -> Run:
        ask, path = self.trial.ask, self.out / "runs" / run_name(config)
        plan = Plan(tasks, self.trial.seeds, batch)
        with RunStore.open(path, config, environment(ask, self.machine)) as store:
            run(store, plan, pool, _counted, progress=progress)
        return read_run(path)

    def records(self, found: Run) -> dict[str, Record]:
        """The answers about the pictures at hand: a run may know others."""
        ids = {photo.id for photo in self.photos}
        return {record.image: record for record in found.records if record.id in ids}

    def asked(
        self, photos: Sequence[Photo], answers: Mapping[str, Mapping[str, Record]]
    ) -> tuple[dict[str, dict[str, Record]], Run]:
        """Every object that any method names is asked about once, and how sure regular decoding was of its own."""
        lexicon = lexicon_named(self.trial.judging.lexicon)
        named = {
            photo: dict.fromkeys(
                mention.object
                for of_method in answers.values()
                for mention in read_mentions(of_method[photo.name].answer, lexicon)
            )
            for photo in photos
        }
        tasks = [
            Task(f"{photo.id}/{name}", photo.name, str(photo.path), name)
            for photo, names in named.items()
            for name in names
        ]
        judging = asdict(self.trial.judging)
        known = {"label": "asked", "fingerprint": "", "method": "asked", "parameters": judging}
        config = self.trial.config(self.model, known)
        with Progress("questions", len(tasks)) as progress:
            pool = self._asking(judging, answers[REGULAR])
            asking = self._done(config, pool, tasks, progress, self.trial.ask.batch)
        by_id = {record.id: record for record in asking.records}
        found = {
            photo.name: {name: by_id[f"{photo.id}/{name}"] for name in names} for photo, names in named.items()
        }
        return found, asking

    def _asking(self, judging: Mapping[str, Any], regular: Mapping[str, Record]) -> Pool:
        """Who puts the questions."""
        ask = self.trial.ask
        if ask.server is not None:
            maker = Maker("seewhen.runs.served:ServedSecondLook", {"judging": judging, **ask.served()})
            return Threads(maker, ask.sampled, ask.at_once)
        said = {name: (record.answer, record.tokens) for name, record in regular.items()}
        options: dict[str, Any] = {"judging": judging, "answers": said, "prompt": self.trial.prompt}
        options |= {"max_new_tokens": self.trial.tokens, "model": ask.model, "loading": ask.loading()}
        return self.machine.pool(Maker("seewhen.runs.second_look:build", options), ask.sampled)


def _reason(error: str, photo: Photo) -> str:
    """Why a picture was skipped, to stand behind its name."""
    missing = f"There is no file {photo.path}"
    return error.replace(missing, "there is no such file").replace(str(photo.path), "it").rstrip(".")


def _counted(records: Sequence[Record]) -> dict[str, Any]:
    failures = [record.error for record in records if record.error]
    return {
        "format": 1,
        "samples": len(records),
        "failures": len(failures),
        "first_failure": failures[0] if failures else None,
        "tokens": sum(record.tokens for record in records),
    }
