"""Jobs whose answers join and leave batches of captured steps: continuous batching.

A job's prompt is read when there is room for its answers, alone or with a few others of its method that wait too;
between two steps of those who are already there. Tokens come back a few steps late and are told like any others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from seewhen.decoding.fast import Fast
from seewhen.decoding.fast.lane import Lane, Seat, Token
from seewhen.decoding.fast.lanes import Lanes
from seewhen.decoding.fast.slots import Choice
from seewhen.server.answering import AnswerRow, Known, RunningAnswers, gated
from seewhen.server.decoding import Decoder
from seewhen.server.failures import ApiError
from seewhen.server.jobs import Failed, Job
from seewhen.server.limits import MIB, Limits
from seewhen.server.preparing import together

Failure = Callable[[Exception, Sequence[Job]], ApiError]  # what jobs are told of an error

_MOST_REMEMBERED = 1000  # clients can make up any number of parameters
_MANY = 8  # answers at once; with more, text is sent
_PAUSE = 0.03  # seconds apart


@dataclass(frozen=True)
class Prompt:
    """The prompts of some jobs, ready to be read together."""

    jobs: tuple[Job, ...]
    inputs: dict[str, Any]
    lengths: tuple[int, ...]
    images: int  # tokens, of the one that has most
    columns: int  # of the longest with its answer

    @property
    def answers(self) -> int:
        """Of all jobs."""
        return sum(job.n for job in self.jobs)


class Joined(RunningAnswers):
    """The answers of one job in a lane."""

    def __init__(self, company: Company, job: Job, length: int) -> None:
        decoder = company.decoder
        super().__init__(
            decoder.asker.ends, decoder.metrics, [AnswerRow(job, n, decoder.tokenizer) for n in range(job.n)]
        )
        self.job = job
        self.lane: Lane | None = None
        self.lengths = dict.fromkeys(self.rows, length)
        self._facts: dict[AnswerRow, Known] = {}
        self._unsent: dict[AnswerRow, str] = {}
        self._told: dict[AnswerRow, float] = {}  # when
        self.seats = {self._seat(row, decoder.context - length): row for row in self.rows}

    def _seat(self, row: AnswerRow, room: int) -> Seat:
        sampling = self.job.sampling
        row.limit = min(row.limit, room)
        temperature = 0.0 if sampling.greedy else sampling.temperature
        choice = Choice(temperature, sampling.top_p, sampling.min_p, row.stream)
        return Seat(choice, row.limit, self.lengths[row], runners=self.job.runners, bias=sampling.bias)

    def end(self, row: AnswerRow, text: str, token: int | None = None) -> None:
        """Its seat is free."""
        seat = next(seat for seat, each in self.seats.items() if each is row)
        if gated(self.job) and self.lane is not None:
            self._facts[row] = Known(self.lane.fired(seat, len(row.tokens)))
        self.leave(seat)
        super().end(row, text, token)

    def tell(self, row: AnswerRow, text: str, token: int | None = None) -> None:
        """Send what is new; where many are told, in pieces of a few tokens, soon enough for who reads along."""
        text = self._unsent.pop(row, "") + text
        now = time.monotonic()
        crowded = self.lane is not None and self.lane.busy > _MANY
        if crowded and not row.finished and now - self._told.get(row, 0.0) < _PAUSE:
            self._unsent[row] = text
            return
        self._told[row] = now
        super().tell(row, text, token)

    def leave(self, seat: Seat) -> None:
        """Nobody waits for more."""
        if self.lane is not None:
            self.lane.leave(seat)

    def known(self, row: AnswerRow) -> Known:
        """What was counted when it left."""
        return self._facts.get(row, Known())

    def notes(self, job: Job) -> tuple[str, ...]:
        """Of the reading."""
        return tuple(dict.fromkeys(note for seat in self.seats for note in seat.notes))


class Company:
    """All jobs that are decoded this way."""

    def __init__(self, decoder: Decoder, limits: Limits, fast: Fast) -> None:
        self.decoder, self.limits = decoder, limits
        budget = limits.slots_mib * MIB if limits.slots_mib else None
        self.lanes = Lanes(decoder.model, decoder.backbone, limits.slots, fast, budget)
        self._joined: dict[Seat, Joined] = {}
        self._serves: dict[str, bool] = {}

    @property
    def jobs(self) -> list[Job]:
        """Those that are being answered."""
        return list(dict.fromkeys(joined.job for joined in self._joined.values()))

    def takes(self, job: Job) -> bool:
        """Whether a job can be answered this way."""
        if job.alone or job.trace or job.sampling.forbidden:
            return False
        served = self._serves.get(job.fingerprint)
        if served is None:
            served = self.lanes.serves(job.method)
            if len(self._serves) >= _MOST_REMEMBERED:
                self._serves = {}  # not emptied: the thread that prepares prompts asks, too
            self._serves[job.fingerprint] = served
        return served

    def prompt(self, jobs: Sequence[Job]) -> Prompt | None:
        """The prompts of jobs of one method, as many as are not refused; None if all are."""
        if not jobs:
            return None
        inputs = self._inputs(jobs)
        lengths = [int(n) for n in inputs["attention_mask"].sum(dim=1)]
        too_long = [job for job, n in zip(jobs, lengths, strict=True) if n >= self.decoder.context]
        for job in too_long:
            job.post(Failed(self.decoder.too_long(lengths[list(jobs).index(job)])))
        if too_long:
            return self.prompt([job for job in jobs if job not in too_long])
        images = int(self.decoder.backbone.image_mask(inputs["input_ids"]).sum(dim=1).max())
        most = max(n + min(job.max_tokens, self.decoder.context - n) for job, n in zip(jobs, lengths, strict=True))
        return Prompt(tuple(jobs), inputs, tuple(lengths), images, most)

    def _inputs(self, jobs: Sequence[Job]) -> dict[str, Any]:
        """As prepared while they waited; pictures of several forms go to the processor together."""
        parts = [None if job.prepared is None else job.prepared.result() for job in jobs]
        ready = [part for part in parts if part is not None]
        found = together(ready, self.decoder.pad or 0) if len(ready) == len(jobs) else None
        return self.decoder.inputs(jobs) if found is None else found

    def room(self, job: Job) -> int:
        """How many answers of its method may come, as far as is known before its prompt is."""
        lanes = [lane for key, lane in self.lanes.lanes.items() if key[0] == job.fingerprint]
        return max((lane.room for lane in lanes), default=self.limits.slots)

    def fits(self, prompt: Prompt) -> bool:
        """Whether there is room for the answers now."""
        return self.lanes.fits(prompt.jobs[0].method, prompt.columns, prompt.images, prompt.answers)

    def join(self, prompt: Prompt) -> None:
        """Read the prompts and let their answers join; raises what the model raises."""
        answers = [Joined(self, job, length) for job, length in zip(prompt.jobs, prompt.lengths, strict=True)]
        seats = [list(each.seats) for each in answers]
        lane = self.lanes.join(prompt.jobs[0].method, prompt.inputs, prompt.columns, seats)
        for each in answers:
            each.lane = lane
            self._joined.update(dict.fromkeys(each.seats, each))
        self.decoder.metrics.batch(lane.busy)

    def step(self, failure: Failure) -> None:
        """One step of all lanes. What goes wrong in one ends the answers that are in it."""
        for lane in self.lanes.busy:
            try:
                for token in self.lanes.advance(lane):
                    self._take(token, failure)
            except torch.AcceleratorError:
                raise  # the device is lost; only a new process helps
            except Exception as error:
                self._give_up(lane, error, failure)

    def _take(self, token: Token, failure: Failure) -> None:
        joined = self._joined[token.seat]
        row = joined.seats[token.seat]
        try:
            joined.take(row, token.id, token.likely)
        except Exception as error:  # of this answer alone, on the host
            joined.job.post(Failed(failure(error, [joined.job])))
            for seat in joined.seats:
                joined.leave(seat)
                self._joined.pop(seat, None)
            return
        if row.finished:
            del self._joined[token.seat]

    def _give_up(self, lane: Lane, error: Exception, failure: Failure) -> None:
        lost = {seat: joined for seat, joined in self._joined.items() if joined.lane is lane}
        jobs = list(dict.fromkeys(joined.job for joined in lost.values()))
        told = failure(error, jobs)
        for seat in lost:
            del self._joined[seat]
        for job in jobs:
            job.post(Failed(told))
        self.lanes.forget(lane)

    @property
    def busy(self) -> bool:
        """Whether something is to do."""
        return bool(self.lanes.busy)

    def spare(self) -> None:
        """Memory ran out: take no more than now, and give back what nobody uses."""
        self.lanes.spare()

    def clear(self) -> None:
        """Take everything off the model, for somebody else."""
        self.lanes.clear()
