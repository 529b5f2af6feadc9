"""Runs with a served model: many answers at once, each recorded when it is there."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from typing import Any

from seewhen.asking.check import Standard
from seewhen.asking.options import Decoding
from seewhen.errors import InvalidInput
from seewhen.methods import method_from_json
from seewhen.runs.noise import stream_seed
from seewhen.runs.pictures import open_picture
from seewhen.runs.second_look import verdict_on
from seewhen.runs.store import Record
from seewhen.runs.told import asked, kept
from seewhen.runs.work import Careful, Done, Job, Maker, Task, TaskAnswer, by_picture
from seewhen.served.pictures import image_part
from seewhen.served.remote import Remote, ServedQuestions, remote
from seewhen.served.replies import Usage
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.questions import QUESTION
from seewhen.verdicts.shipped import verdict_named


class ServedAnswerer:
    """Answers tasks with a served model; any number of threads may ask it."""

    def __init__(
        self,
        server: str,
        model: str,
        method: Mapping[str, Any],
        max_new_tokens: int,
        temperature: float,
        key_from: str,
        at_once: int = 16,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._remote: Remote = remote(server, model, key_from=key_from, options=request, at_once=at_once)
        self._method = method_from_json(method)
        self._max_new_tokens, self._temperature = max_new_tokens, temperature
        _ = self._remote.offers  # what is wrong with the server shows here, before the first answer

    def close(self) -> None:
        """Ends the connections."""
        self._remote.close()

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[TaskAnswer]:
        """In order; a task whose image cannot be opened gets an error instead."""
        return [self._answer(task, seed) for task in tasks]

    def _answer(self, task: Task, seed: int | None) -> TaskAnswer:
        decoding = Decoding(self._max_new_tokens)
        if seed is not None:
            own = stream_seed(seed, task.id) % 2**31
            decoding = Decoding(self._max_new_tokens, True, self._temperature, seed=own)
        picture = open_picture(task.source)
        found = self._remote.generate(picture, task.prompt, self._method, **asdict(decoding))
        facts: dict[str, float] = asdict(found.usage)
        told = found.told or {}
        return TaskAnswer(found.text, found.tokens, facts=facts | asked(told), told=kept(told))


class ServedSecondLook:
    """Each task is an object (its prompt) of a picture, put to a served model as a question."""

    def __init__(
        self,
        server: str,
        model: str,
        judging: Mapping[str, Any],
        key_from: str,
        at_once: int = 16,
        request: Mapping[str, Any] | None = None,
    ) -> None:
        self._remote = remote(server, model, key_from=key_from, options=request, at_once=at_once)
        self._lexicon = lexicon_named(judging["lexicon"])
        self._standard = Standard.of(verdict_named(judging["verdict"]), judging["threshold"])
        self._remote.asking()  # what cannot be asked is told before the first question

    def close(self) -> None:
        """Ends the connections."""
        self._remote.close()

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[TaskAnswer]:
        """In order; the questions about one picture go together."""
        return by_picture(tasks, self._about)

    def _about(self, tasks: Sequence[Task]) -> list[TaskAnswer]:
        parts = [image_part(open_picture(tasks[0].source))]
        asked = ServedQuestions(self._remote, parts, self._lexicon, QUESTION)
        answers = []
        for name, odds in asked.odds([task.prompt for task in tasks]).items():
            low, high = (None if odds is None else odds.range) or (None, None)
            value = None if odds is None else odds.value
            answers.append(verdict_on(name, value, self._standard, {"low": low, "high": high}))
        return answers


def total(records: Sequence[Record]) -> dict[str, int]:
    """What the answers of a run cost together, as the server counts; requests tried again included."""
    names = asdict(Usage())
    return {name: int(sum(record.facts.get(name, 0) for record in records)) for name in names}


@dataclass(frozen=True)
class Threads:
    """So many jobs at once, all with one answerer. After a failure those under way still end and count."""

    maker: Maker
    sampled: bool
    at_once: int = 16

    def __post_init__(self) -> None:
        if self.at_once < 1:
            raise InvalidInput(f"{self.at_once} answers at once are none.", "Ask for 1 or more.")

    def run(self, jobs: Sequence[Job], stop: threading.Event) -> Iterator[Done]:
        """In the order in which they end."""
        if not jobs:
            return
        answerer = self.maker.make()
        careful = Careful(answerer, self.sampled)
        waiting, under_way = deque(jobs), set[Future[Done]]()
        failure: BaseException | None = None
        threads = ThreadPoolExecutor(self.at_once, thread_name_prefix="seewhen-run")
        try:
            while under_way or (waiting and failure is None and not stop.is_set()):
                while waiting and failure is None and len(under_way) < self.at_once and not stop.is_set():
                    under_way.add(threads.submit(careful, waiting.popleft()))
                ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for each in ended:
                    if each.exception() is None:
                        yield each.result()
                    else:
                        failure = failure or each.exception()
        finally:
            # First this: after a second Ctrl-C the threads still wait for the server, and Python for them.
            answerer.close()
            threads.shutdown(cancel_futures=True)
        if failure is not None:
            raise failure
