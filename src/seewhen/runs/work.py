"""What a run consists of: tasks, the jobs they are packed into, and answering a job with care.

A job is a fixed piece of the work: whole images, in the benchmark's order, as many as fit the batch.
The cut depends only on the list of tasks and the batch size, never on what is done already or on who
does it, so a resumed run and a run over many machines put the same tasks into the same batches.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Protocol

from seewhen.errors import InvalidInput


@dataclass(frozen=True)
class Task:
    """One question to ask: `image` names the image, `source` says where it is, `prompt` is the text."""

    id: str
    image: str
    source: str
    prompt: str


@dataclass(frozen=True)
class Answer:
    """What came back. `error` is empty, or says why there is no answer."""

    text: str
    tokens: int = 0
    error: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)


class Answerer(Protocol):
    """Something that answers a batch; `seed` is None for greedy decoding.

    A bad image is an `Answer` with an error, or an `InvalidInput`; the same tasks and seed must give
    the same answers.
    """

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[Answer]: ...

    def close(self) -> None:
        """Leaves whatever it used as it was."""
        ...


@dataclass(frozen=True)
class Maker:
    """How any process, also on another machine, makes an answerer: "module:function" and plain options."""

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


def image_order(tasks: Iterable[Task]) -> list[Task]:
    """The tasks with those of one image next to each other, images in the order of first appearance."""
    by_image: dict[str, list[Task]] = {}
    for task in tasks:
        by_image.setdefault(task.image, []).append(task)
    return [task for group in by_image.values() for task in group]


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

    Out of memory halves the batch and goes on; the smaller batch is kept, since the next one would not
    fit either. A task that cannot be answered alone becomes a failure of its own.
    """

    def __init__(self, answerer: Answerer, sampled: bool) -> None:
        self._answerer = answerer
        self._sampled = sampled
        self.most: int | None = None  # the largest batch known to fit, once one did not

    def __call__(self, job: Job) -> list[Answer]:
        seed = job.seed if self._sampled else None
        answers: list[Answer] = []
        rest = list(job.tasks)
        while rest:
            part = rest[: self.most or len(rest)]
            problem = self._try(part, seed, answers)
            if problem is None:
                rest = rest[len(part) :]
            elif len(part) == 1:
                answers.append(Answer("", error=problem))
                rest = rest[1:]
            elif problem == _MEMORY:
                self.most = len(part) // 2
            else:  # one of these is bad: ask one by one to find it
                for task in part:
                    single = self._try([task], seed, answers)
                    if single is not None:
                        answers.append(Answer("", error=single))
                rest = rest[len(part) :]
        return answers

    def _try(self, part: Sequence[Task], seed: int | None, answers: list[Answer]) -> str | None:
        """Adds the answers, or says what went wrong."""
        try:
            got = self._answerer.answer(part, seed)
        except InvalidInput as error:
            return str(error)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            if len(got) != len(part):
                raise RuntimeError(f"{len(part)} tasks were asked but {len(got)} answers came back")
            answers += got
            return None
        # Outside the except clause, where the exception no longer keeps the batch's tensors alive.
        _free_memory()
        return _MEMORY


_MEMORY = "out of memory"


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA's own class, Python's, and the text of the CPU allocator's plain RuntimeError."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "out of memory" in text
        or "can't allocate memory" in text
        or "not enough memory" in text
    )


def _free_memory() -> None:
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()
