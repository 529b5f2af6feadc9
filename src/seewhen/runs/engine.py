"""Runs jobs and records their answers; the local pools of workers.

One process, the driver, owns the run directory and is its only writer. Who computes is a `Pool`: this
process itself, one process per device, or a Ray cluster (`ray_engine.py`). Pools may finish jobs in any
order; the store sorts at the end, so all of them leave the same bytes.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import Any, Protocol

from seewhen.errors import SeewhenError
from seewhen.runs.progress import Progress
from seewhen.runs.store import Key, Record, RunStore
from seewhen.runs.work import Careful, Done, Job, Maker, Task, cut_jobs


class Interrupted(SeewhenError):
    """The run was asked to stop; everything answered so far is on disk."""

    exit_code = 130  # as of any program that Ctrl-C ends


class WorkerFailed(SeewhenError):
    """A worker died again and again on the same job, or could not start."""


class Pool(Protocol):
    """Answers jobs, in any order, until `stop` is set or none are left."""

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[Done]: ...


@dataclass(frozen=True)
class Plan:
    """What is asked for: tasks (images together), seeds, and how many tasks go into one batch."""

    tasks: Sequence[Task]
    seeds: Sequence[int]
    batch: int

    def keys(self) -> list[Key]:
        """Every answer of the finished run, in the order in which the file holds them."""
        return [(task.id, seed) for seed in self.seeds for task in self.tasks]


def run(
    store: RunStore,
    plan: Plan,
    pool: Pool,
    result: Callable[[Sequence[Record]], Mapping[str, Any]],
    title: str = "run",
    progress: Progress | None = None,
) -> Mapping[str, Any]:
    """Answers whatever is missing, then scores: `result` turns the records of the plan into JSON.

    `progress` is that of several runs; without it this one has its own, called `title`.
    """
    wanted = plan.keys()
    already = sum(key in store.done for key in wanted)
    missing = [
        job
        for job in cut_jobs(plan.tasks, plan.seeds, plan.batch)
        if any((task.id, job.seed) not in store.done for task in job.tasks)
    ]
    if progress is not None:
        progress.skip(already)
    own = Progress(title, len(wanted), already) if progress is None else nullcontext(progress)
    with stop_on_signals() as stop, own as progress:
        for done in pool.run(missing, stop):
            new = [record for record in _records(done) if record.key not in store.done]
            store.append(new)
            store.note_timing(
                {
                    "samples": len(done.answers),
                    "tokens": sum(answer.tokens for answer in done.answers),
                    "seconds": round(done.seconds, 4),
                }
            )
            progress.advance(len(new))
    left = len(wanted) - sum(key in store.done for key in wanted)
    if left:
        raise Interrupted(
            f"Stopped with {len(wanted) - left} of {len(wanted)} answers in {store.path}.",
            "Run the same command again to go on.",
        )
    by_key = {record.key: record for record in store.records}
    outcome = result([by_key[key] for key in wanted])
    store.finish(wanted, outcome)
    return outcome


def _records(done: Done) -> Iterator[Record]:
    for task, answer in zip(done.job.tasks, done.answers, strict=True):
        # Half a surrogate pair, of a model or of a file's name, cannot be written as UTF-8: it becomes a "?".
        text, error = (each.encode("utf-8", "replace").decode("utf-8") for each in (answer.text, answer.error))
        yield Record(task.id, done.job.seed, task.image, text, answer.tokens, error, answer.facts, answer.told)


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """The first SIGTERM or Ctrl-C lets the current batch finish; the second ends at once."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass(frozen=True)
class InProcess:
    """The default: this process answers, one job after the other."""

    maker: Maker
    sampled: bool

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[Done]:
        if not jobs:
            return  # a finished run needs no model
        answerer = self.maker.make()
        careful = Careful(answerer, self.sampled)
        try:
            for job in jobs:
                if stop.is_set():
                    return
                yield careful(job)
        finally:
            answerer.close()


def _serve(maker: Maker, sampled: bool, device: str, pipe: Connection) -> None:
    """A worker process: answers the jobs that come down the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the driver decides
    try:
        careful = Careful(maker.make(device), sampled)
        while True:
            pipe.send(careful(pipe.recv()))
    except EOFError:
        return
    except Exception as error:
        pipe.send(error if isinstance(error, SeewhenError) else WorkerFailed(f"Worker on {device}: {error!r}"))


@dataclass
class _Worker:
    device: str
    process: BaseProcess
    pipe: Connection
    job: Job | None = None


@dataclass(frozen=True)
class Processes:
    """One process per device of this machine. A worker that dies is started again."""

    maker: Maker
    sampled: bool
    devices: Sequence[str]
    tries: int = 3

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[Done]:
        queue = deque(jobs)
        deaths: dict[int, int] = {}
        workers = [self._start(device) for device in self.devices[: len(jobs)]]
        try:
            while True:
                for worker in workers:
                    if worker.job is None and queue and not stop.is_set():
                        self._give(worker, queue)
                busy = [worker for worker in workers if worker.job is not None]
                if not busy:
                    return
                ready = wait([worker.pipe for worker in busy], timeout=0.5)
                for worker in busy:
                    if worker.pipe not in ready:
                        continue
                    done = self._receive(worker, queue, deaths)
                    if done is not None:
                        yield done
        finally:
            for worker in workers:
                worker.pipe.close()
                worker.process.terminate()
            for worker in workers:
                worker.process.join(10)

    def _start(self, device: str) -> _Worker:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self.maker, self.sampled, device, theirs), daemon=True)
        process.start()
        theirs.close()
        return _Worker(device, process, ours)

    def _give(self, worker: _Worker, queue: deque[Job]) -> None:
        job = queue.popleft()
        worker.job = job
        try:
            worker.pipe.send(job)
        except (BrokenPipeError, ConnectionResetError):
            return  # it died idle: the read that follows finds out

    def _receive(self, worker: _Worker, queue: deque[Job], deaths: dict[int, int]) -> Done | None:
        job = worker.job
        assert job is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            deaths[job.number] = deaths.get(job.number, 0) + 1
            if deaths[job.number] >= self.tries:
                raise WorkerFailed(
                    f"The worker on {worker.device} died {self.tries} times on the same batch.",
                    "Look at the system log (killed for memory?) and try a smaller --batch.",
                ) from None
            queue.appendleft(job)
            worker.process.join(10)
            fresh = self._start(worker.device)
            worker.process, worker.pipe, worker.job = fresh.process, fresh.pipe, None
            return None
        worker.job = None
        if isinstance(message, Exception):
            raise message
        assert isinstance(message, Done)
        return message
