"""What a run consists of: tasks, the jobs they are packed into, and answering a job with care.

A job is a fixed piece of the work: whole images, in the benchmark's order, as many as fit the batch.
The cut depends only on the list of tasks and the batch size, never on what is done already or on who
does it, so a resumed run and a run over many machines put the same tasks into the same batches.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from seewhen.asking.memory import Halving, is_out_of_memory
from seewhen.errors import InvalidInput


@dataclass(frozen=True)
class Task:
    """One question to ask: `image` names the image, `source` says where it is, `prompt` is the text."""

    id: str
    image: str
    source: str
    prompt: str


@dataclass(frozen=True)
class TaskAnswer:
    """What came back. `error` is empty, or says why there is no answer."""

    text: str
    tokens: int = 0
    error: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)  # of a method that asks: its verdicts, what it took back


class Answerer(Protocol):
    """Something that answers a batch; `seed` is None for greedy decoding.

    A bad image is an `TaskAnswer` with an error, or an `InvalidInput`; the same tasks and seed must give
    the same answers.
    """

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[TaskAnswer]: ...

    def close(self) -> None:
        """Leaves whatever it used as it was."""
        ...


@dataclass(frozen=True)
class Maker:
    """How any process, also on another machine, makes an answerer: a class or function, "module:name", and plain
    options."""

    function: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, device: str | None = None) -> Answerer:
        module, _, name = self.function.partition(":")
        build: Callable[..., Answerer] = getattr(importlib.import_module(module), name)
        return build(**self.options) if device is None else build(**{**self.options, "device": device})


@dataclass(frozen=True)
class Job:
    """Tasks that are answered together with one seed."""

    number: int
    seed: int
    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Done:
    """A finished job with its answers and the seconds they took."""

    job: Job
    answers: Sequence[TaskAnswer]
    seconds: float


def image_order(tasks: Iterable[Task]) -> list[Task]:
    """The tasks with those of one image next to each other, images in the order of first appearance."""
    by_image: dict[str, list[Task]] = {}
    for task in tasks:
        by_image.setdefault(task.image, []).append(task)
    return [task for group in by_image.values() for task in group]


def by_picture(tasks: Sequence[Task], about: Callable[[list[Task]], list[TaskAnswer]]) -> list[TaskAnswer]:
    """Answers in order; the tasks about one picture go together."""
    together = groupby(tasks, key=lambda task: (task.image, task.source))
    return [answer for _, some in together for answer in about(list(some))]


def cut_jobs(tasks: Sequence[Task], seeds: Sequence[int], batch: int) -> Iterator[Job]:
    """All jobs, seed by seed. An image is split only if it alone has more tasks than the batch."""
    if batch < 1:
        raise InvalidInput(f"The batch must be at least 1, not {batch}.")
    pieces: list[tuple[Task, ...]] = []
    current: list[Task] = []
    for _, group in groupby(tasks, key=lambda task: task.image):
        images_tasks = list(group)
        if current and len(current) + len(images_tasks) > batch:
            pieces.append(tuple(current))
            current = []
        current += images_tasks
        while len(current) >= batch:
            pieces.append(tuple(current[:batch]))
            current = current[batch:]
    if current:
        pieces.append(tuple(current))
    for s, seed in enumerate(seeds):
        for p, piece in enumerate(pieces):
            yield Job(s * len(pieces) + p, seed, piece)


class Careful:
    """Answers jobs whatever happens to them.

    A batch that does not fit into memory is halved. A task that cannot be answered alone becomes a failure of
    its own.
    """

    def __init__(self, answerer: Answerer, sampled: bool) -> None:
        self._answerer = answerer
        self._sampled = sampled
        self.halving = Halving()

    def __call__(self, job: Job) -> Done:
        seed, start = job.seed if self._sampled else None, time.monotonic()
        parts = self.halving(job.tasks, lambda part: self._answers(part, seed))
        return Done(job, [answer for part in parts for answer in part], time.monotonic() - start)

    def _answers(self, part: Sequence[Task], seed: int | None) -> list[TaskAnswer]:
        try:
            got = self._answerer.answer(part, seed)
        except InvalidInput as error:
            if len(part) == 1:
                return [TaskAnswer("", error=str(error))]
            # One of these is bad: ask one by one to find it.
            return [answer for task in part for answer in self._answers([task], seed)]
        except (MemoryError, RuntimeError) as error:
            if len(part) > 1 or not is_out_of_memory(error):
                raise
            return [TaskAnswer("", error="out of memory")]
        if len(got) != len(part):
            raise RuntimeError(f"{len(part)} tasks were asked but {len(got)} answers came back")
        return list(got)
