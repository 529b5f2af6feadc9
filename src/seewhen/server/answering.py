"""Answers on their way to clients: what every way of decoding does with tokens that have arrived."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from seewhen.decoding.fast.lane import Likely
from seewhen.runs.noise import stream_seed
from seewhen.server import sharing
from seewhen.server.jobs import Delta, Done, Finished, Job, LogProb, Started
from seewhen.server.metrics import Metrics
from seewhen.server.sampling import LEAST_LOG_PROB, RowChooser
from seewhen.server.token_text import TextWriter


class AnswerRow:
    """One answer while it is being decoded."""

    def __init__(self, job: Job, index: int, tokenizer: Any) -> None:
        self.job, self.index = job, index
        self.stream = stream_seed(job.sampling.seed, str(index))  # the seed of its random numbers
        self.chooser = RowChooser(job.sampling, self.stream, None if job.alone else job.runners)
        before = tokenizer(job.begun, add_special_tokens=False)["input_ids"] if job.begun else ()
        self.writer = TextWriter(tokenizer, job.stops, before, job.keeps_stop)
        self.limit = job.max_tokens
        self.tokens: list[int] = []
        self.numbers: list[int] = []  # those of the text
        self.log_probs: list[LogProb] = []
        self.reason: str | None = None
        self.stopped: str | None = None
        self._told = self._numbered = 0
        self._spelled = ""

    @property
    def finished(self) -> bool:
        """Whether its last token is there."""
        return self.reason is not None

    def take(self, token: int, ends: frozenset[int], likely: Likely | None = None) -> str:
        """The next token; returns the text that became certain."""
        self.tokens.append(token)
        if token in ends:
            self.reason = "stop"
            return self.writer.end()
        self.numbers.append(token)
        likely = likely or self.chooser.likely(token)
        if likely is not None:
            spelled = self.writer.spelled
            best = tuple((spelled(other), max(value, LEAST_LOG_PROB)) for other, value in likely.best)
            self.log_probs.append(LogProb(spelled(token), max(likely.log_prob, LEAST_LOG_PROB), best))
        text = self.writer.add(token)
        if self.writer.stopped is not None:
            self.reason = "stop"
        elif len(self.tokens) >= self.limit:
            self.reason = "length"
        return text + self.writer.end() if self.finished else text

    def give_up(self, why: str) -> str:
        """No more tokens, for a reason of ours: `time` or `cancelled`."""
        self.reason, self.stopped = "length", why
        return self.writer.end()

    def rest(self) -> str:
        """The answer ends with what is there."""
        self.reason = "stop"
        return self.writer.end()

    def spelled(self, tokenizer: Any) -> str:
        """The newest token as it stands in the text. Alone, many a tokenizer would leave out its space."""
        before, self._spelled = self._spelled, str(tokenizer.decode(self.tokens))
        return self._spelled[len(before) :]

    def new_log_probs(self) -> tuple[LogProb, ...]:
        """Those not told yet."""
        fresh, self._told = tuple(self.log_probs[self._told :]), len(self.log_probs)
        return fresh

    def new_numbers(self) -> tuple[int, ...]:
        """Those not told yet, if they are to be told."""
        if not self.job.numbers:
            return ()
        fresh, self._numbered = tuple(self.numbers[self._numbered :]), len(self.numbers)
        return fresh


@dataclass(frozen=True)
class Known:
    """What is known of a complete answer beside its text."""

    fired: int | None = None
    trace: dict[str, Any] | None = None
    told: dict[str, Any] | None = None


def gated(job: Job) -> bool:
    """Whether it is counted at how many tokens its method acted."""
    return not job.alone and not sharing.rides(job.method)


class RunningAnswers:
    """Rows that are decoded together. Whoever decodes them says what is known of each."""

    def __init__(self, ends: frozenset[int], metrics: Metrics, rows: Sequence[AnswerRow]) -> None:
        self.ends, self.metrics, self.rows = ends, metrics, list(rows)
        self.lengths: dict[AnswerRow, int] = {}  # tokens of each prompt

    def take(self, row: AnswerRow, token: int, likely: Likely | None = None) -> None:
        """The next token of a row."""
        self.start(row)
        text = row.take(token, self.ends, likely)
        if not row.finished and row.job.cancelled:
            text += row.give_up("cancelled")
        elif not row.finished and time.monotonic() > row.job.deadline:
            text += row.give_up("time")
        if row.finished:
            self.end(row, text, token)
        elif row.job.stream:
            self.tell(row, text, token)

    def start(self, row: AnswerRow) -> None:
        """The first token is there."""
        if not row.job.started:
            row.job.started = True
            row.job.post(Started(self.lengths[row], len(self.rows)))

    def tell(self, row: AnswerRow, text: str, token: int | None = None) -> None:
        """Send what is new, to whom it is streamed."""
        live = {} if token is None else self.live(row, token)
        log_probs, numbers = row.new_log_probs(), row.new_numbers()
        if text or log_probs or numbers or live:
            row.job.post(Delta(row.index, text, log_probs, live, numbers))

    def end(self, row: AnswerRow, text: str, token: int | None = None) -> None:
        """A row is complete."""
        self.start(row)
        if row.job.stream:
            self.tell(row, text, token)
        job = row.job
        if not self.waits(job) and all(other.finished for other in self.rows if other.job is job):
            self.finish(job)

    def finish(self, job: Job) -> None:
        """Post the answers of a job."""
        for row in [row for row in self.rows if row.job is job]:
            known = self.known(row)
            self.metrics.answered(type(job.method).name, len(row.tokens), known.fired)
            job.post(
                Finished(
                    row.index,
                    row.writer.text,
                    len(row.tokens),
                    row.reason or "length",
                    tuple(row.log_probs),
                    known.fired,
                    row.stopped,
                    known.trace,
                    known.told,
                    row.writer.stopped,
                    tuple(row.numbers),
                )
            )
        job.post(Done(self.notes(job)))

    def live(self, row: AnswerRow, token: int) -> dict[str, Any]:
        """What is told of a token beside its text, while it is streamed."""
        return {}

    def waits(self, job: Job) -> bool:
        """Whether the answers of a job come when all are complete."""
        return False

    def known(self, row: AnswerRow) -> Known:
        """What is known of a complete answer."""
        return Known()

    def notes(self, job: Job) -> tuple[str, ...]:
        """What the method has to say."""
        return ()
