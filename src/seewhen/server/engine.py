"""The engine: one thread that owns one model, a queue before it, and batches of what may run together."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Sequence

import torch

from seewhen.asking.memory import free_memory, is_out_of_memory
from seewhen.backbones.loading import Loaded
from seewhen.decoding.fast import Fast
from seewhen.errors import SeewhenError
from seewhen.server.bell import rung_once
from seewhen.server.company import Company, Prompt
from seewhen.server.decoding import Decoder
from seewhen.server.failures import ApiError, internal, not_ready, shutting_down
from seewhen.server.jobs import Failed, Job
from seewhen.server.limits import Limits
from seewhen.server.metrics import Metrics
from seewhen.server.preparing import Preparing
from seewhen.server.prompting import Prompter
from seewhen.server.sharing import rides
from seewhen.verdicts.shipped import shipped_name

log = logging.getLogger("seewhen.server")


class Engine:
    """Runs jobs on a model. `submit` may be called from any thread; events come from the engine's own."""

    def __init__(self, name: str, loaded: Loaded, limits: Limits, metrics: Metrics, fast: Fast = "auto") -> None:
        """`fast` as of `attach`: by default answers join captured steps where the model is on one GPU."""
        self.name, self.limits = name, limits
        # `packaged` or `photo`, by where it was loaded from: the page warns whom it does not suit.
        self.shipped = shipped_name(str(getattr(loaded[0].config, "_name_or_path", "")))
        self.decoder = Decoder(loaded, limits, metrics)
        self.company = Company(self.decoder, limits, fast)
        self.prompter = Prompter(self.decoder.processor)
        self._preparing = Preparing(self.decoder.model, self.decoder.processor, name)
        self._metrics = metrics
        self._queue: deque[Job] = deque()
        self._running: Sequence[Job] = ()
        self._door: Prompt | None = None  # who waits for room
        self._singly: set[str] = set()  # jobs whose prompts are read alone
        self._ready = threading.Condition()
        self._closing = False
        self._dead = False
        self._rows = limits.batch_rows  # less after the memory did not suffice
        self._pace = 1.0  # seconds a batch took, smoothed, for Retry-After
        self._thread = threading.Thread(target=self._main, name=f"seewhen-{name}", daemon=True)
        metrics.watch(name, waiting=lambda: self.waiting, alive=lambda: self.alive)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive() and not self._dead

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._queue)

    @property
    def thread_id(self) -> int | None:
        """Of the inference thread."""
        return self._thread.ident

    def check(self, weight: int = 0) -> None:
        """Raise what `submit` would raise now for a job with images of `weight` bytes."""
        if self._closing:
            raise shutting_down()
        if not self.alive:
            raise not_ready(self.name)
        held = sum(job.weight for job in tuple(self._queue))
        if len(self._queue) >= max(self.limits.queue, 1) or (held and held + weight > self.limits.queue_bytes):
            batches = math.ceil((len(self._queue) + 1) / self._rows)
            raise ApiError(
                429,
                "queue_full",
                "The server has as many requests as it can take.",
                "Try again later.",
                retry_after=max(1, math.ceil(batches * self._pace)),
            )

    def submit(self, job: Job) -> None:
        """Put a job into the queue, or raise `ApiError` (429, 503)."""
        with self._ready:
            self.check(job.weight)
            self._queue.append(job)
        self._preparing.begin(job, self.company.takes, self._wake)

    def _wake(self) -> None:
        with self._ready:
            self._ready.notify()

    def cancel(self, job: Job) -> None:
        """Nobody waits for this job any more: out of the queue, or stopped at its next token."""
        job.cancelled = True
        with self._ready:
            if job in self._queue:
                self._queue.remove(job)

    def close(self, timeout: float | None = None) -> None:
        """Finish what was accepted, then end."""
        with self._ready:
            self._closing = True
            self._ready.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)

    # -- the inference thread ----------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while self._next():
                if self._running:
                    started = time.monotonic()
                    self._begin(self._running)
                    self._running = ()
                    self._pace += 0.2 * (time.monotonic() - started - self._pace)
                if self._door is not None:
                    self._enter(self._door)
                with rung_once():
                    self.company.step(self._failure)
        except BaseException:
            log.exception("the inference thread of %s died", self.name)
        finally:
            waiting = () if self._door is None else self._door.jobs
            with self._ready:
                self._dead = True
                left, self._queue = [*self._running, *waiting, *self.company.jobs, *self._queue], deque()
            for job in left:
                job.post(Failed(not_ready(self.name)))
            self._preparing.close()
            self.company.clear()  # the model is as it was

    def _next(self) -> bool:
        """Wait for something to do: `_running` is then who comes next, nobody if those who are here just go on.
        False when there is nothing left to do for ever."""
        with self._ready:
            while True:
                idle = self._first is None
                while self._first is None and self._door is None and not self.company.busy:
                    if self._closing and not self._queue:
                        return False
                    self._ready.wait()
                self._drop_late()
                if self._door is None and (first := self._first) is not None:
                    if self.company.takes(first):
                        self._running = self._together(first)
                    else:
                        self._wait_for_others(idle)
                        self._running = self._take() if self._first else ()
                if self._running or self._door is not None or self.company.busy:
                    return True

    def _wait_for_others(self, idle: bool) -> None:
        """An idle model waits a little for the rest of a batch."""
        until = time.monotonic() + (self.limits.batch_wait_ms / 1000 if idle else 0)
        while 0 < self._rows_of(self._queue) < self._rows and (left := until - time.monotonic()) > 0:
            self._ready.wait(left)
        self._drop_late()

    def _begin(self, jobs: Sequence[Job]) -> None:
        """Bring jobs to the door of those who are here, or run a batch of them to its end."""
        if not self.company.takes(jobs[0]):
            self.company.clear()  # the model is theirs meanwhile; the others go on afterwards
            self._answer(jobs)
            return
        try:
            self._door = self.company.prompt([job for job in jobs if not job.cancelled])
        except Exception as error:
            self._refuse(jobs, error)

    def _enter(self, prompt: Prompt) -> None:
        """Let those at the door join, when there is room."""
        if all(job.cancelled for job in prompt.jobs):  # nobody waits any more
            self._door = None
        elif self.company.fits(prompt):
            self._door = None
            try:
                self.company.join(prompt)
            except torch.AcceleratorError:
                raise  # the device is lost; only a new process helps
            except Exception as error:
                self._refuse(prompt.jobs, error)
        elif not self.company.busy:  # there never will be
            self._door = None
            self.company.clear()
            self._answer(prompt.jobs)

    def _refuse(self, jobs: Sequence[Job], error: Exception) -> None:
        """Prompts that cannot be read: each is tried alone, so that one cannot harm the others."""
        failure = self._failure(error, jobs)
        if len(jobs) == 1:
            jobs[0].post(Failed(failure))
            return
        with self._ready:
            self._singly.update(job.id for job in jobs)
            self._queue.extendleft(reversed(jobs))

    @property
    def _first(self) -> Job | None:
        """The oldest job that is ready."""
        return next((job for job in self._queue if job.ready), None)

    def _together(self, first: Job) -> list[Job]:
        """A job, and those of its method whose prompts are read with it; as many as there is room for."""
        most = 1 if first.id in self._singly else self.limits.read_together
        self._singly.discard(first.id)
        batch, room = [first], self.company.room(first) - first.n
        for job in self._queue:
            alike = job is not first and job.fingerprint == first.fingerprint
            fitting = alike and job.ready and job.n <= room
            if fitting and len(batch) < most and job.id not in self._singly and self.company.takes(job):
                batch.append(job)
                room -= job.n
        # One, two, four: few forms of prompts, each of which is captured.
        batch = batch[: 1 << (len(batch).bit_length() - 1)]
        self._queue = deque(job for job in self._queue if job not in batch)
        return batch

    def _drop_late(self) -> None:
        now = time.monotonic()
        for job in [job for job in self._queue if now > job.deadline]:
            self._queue.remove(job)
            job.post(
                Failed(
                    ApiError(
                        429,
                        "queue_timeout",
                        "The request waited too long for its turn.",
                        "Try again later.",
                        retry_after=max(1, math.ceil(self._pace)),
                    )
                )
            )

    def _take(self) -> list[Job]:
        """The oldest job and those that may share its batch, of similar length first: a batch lasts as long as its
        longest answer."""
        first = self._first
        assert first is not None
        others = self._partners(first)
        others.sort(key=lambda job: abs(job.max_tokens.bit_length() - first.max_tokens.bit_length()))
        batch, rows = [first], first.n
        for job in others:
            if rows + job.n <= self._rows:
                batch.append(job)
                rows += job.n
        self._queue = deque(job for job in self._queue if job not in batch)
        return batch

    def _partners(self, first: Job) -> list[Job]:
        """Jobs that may share a batch with `first`: of the same method, or guests, or one method as host."""
        company = first.company
        found = [job for job in self._queue if job is not first and job.company == company]
        if first.alone or first.trace:
            return found
        near = [job for job in self._queue if not job.alone and job.company[1:] == company[1:]]
        if rides(first.method):
            host = next((job for job in near if self.decoder.hosts(job)), None)
            found += [job for job in near if host is not None and job.company == host.company]
        elif self.decoder.hosts(first):
            found += [job for job in near if rides(job.method)]
        return found

    @staticmethod
    def _rows_of(jobs: Sequence[Job] | deque[Job]) -> int:
        return sum(job.n for job in jobs)

    def _answer(self, jobs: Sequence[Job]) -> None:
        """Run a batch. If it fails, its jobs run again in halves, so that one of them cannot harm the others."""
        jobs = [job for job in jobs if not job.cancelled]
        if not jobs:
            return
        self._metrics.batch(self._rows_of(jobs))
        try:
            self.decoder.run(jobs)
            return
        except torch.AcceleratorError:
            raise  # the device is lost; only a new process helps
        except Exception as error:
            failure = self._failure(error, jobs)
            if is_out_of_memory(error) and len(jobs) > 1:  # one that does not fit alone says nothing of others
                self._rows = max(self._rows_of(jobs) // 2, 1)
                log.warning("batches now have at most %d rows", self._rows)
        # What a client has seen cannot be taken back: those that began end here.
        for job in [job for job in jobs if job.started]:
            job.post(Failed(failure))
        rest = [job for job in jobs if not job.started]
        if len(rest) == 1 and len(jobs) == 1:
            rest[0].post(Failed(failure))
        elif rest:
            half = max(len(rest) // 2, 1)
            for part in (rest[:half], rest[half:]):
                self._answer(part)

    def _failure(self, error: Exception, jobs: Sequence[Job]) -> ApiError:
        if is_out_of_memory(error):
            self.company.spare()
            free_memory()
            log.warning("out of memory; answers at once: %d", self._rows_of(jobs))
            return ApiError(
                503, "out_of_memory", "The request needs more memory than there is.", "Send less.", retry_after=1
            )
        if isinstance(error, SeewhenError):
            log.info("refused %s: %s (%r)", ", ".join(job.id for job in jobs), error, error.__cause__)
            return ApiError(400, "invalid_request", error.message, error.hint)
        log.exception("batch of %s failed", ", ".join(job.id for job in jobs))
        return internal()
