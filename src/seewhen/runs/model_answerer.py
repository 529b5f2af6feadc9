"""The real answerer: a model, a method, and decoding that does not depend on who shares the batch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import torch
from transformers import LogitsProcessorList

from seewhen.asking.asker import Asker, Batch, Question
from seewhen.asking.options import needed
from seewhen.backbones.loading import Loaded, load
from seewhen.decoding.fast import Fast
from seewhen.decoding.tilted_attention import Tilt
from seewhen.errors import InvalidInput
from seewhen.methods import method_from_json
from seewhen.runs.noise import HashedNoise, Noise, OwnNoise, stream_seed
from seewhen.runs.pictures import open_picture
from seewhen.runs.told import asked, kept
from seewhen.runs.work import Task, TaskAnswer


class ModelAnswerer:
    """Answers tasks with a model. `method` is a description as `Method.to_json` gives it; `loading` holds
    arguments of `seewhen.load`. With `fast` other than "off", answers may depend on the size of the batch through
    rounding: our kernels take up to sixteen rows, more go the stock way."""

    def __init__(
        self,
        model: str,
        method: Mapping[str, Any],
        max_new_tokens: int,
        raw_prompt: bool = False,
        temperature: float = 1.0,
        device: str | None = None,
        loading: Mapping[str, Any] | None = None,
        fast: Fast = "off",
        noise: Noise = "streams",
    ) -> None:
        self._asker = Asker(loaded_once(model, device, tuple(sorted((loading or {}).items()))))
        self._open = ExitStack()
        self._attached = self._open.enter_context(self._asker.attached(method_from_json(method), fast=fast))
        interventions = self._attached.handle.session.parts.interventions
        self._tilts = bool(interventions) and all(isinstance(i, Tilt) for i in interventions)
        self._judges = self._attached.handle.session.parts.judge is not None
        self._max_new_tokens, self._raw, self._temperature = max_new_tokens, raw_prompt, temperature
        self._noise = noise

    def close(self) -> None:
        """Takes the method off the model again."""
        self._open.close()

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[TaskAnswer]:
        """Answers in order; a task whose image cannot be opened gets an error instead."""
        pictures: dict[str, Any] = {}
        broken: dict[str, str] = {}
        for source in dict.fromkeys(task.source for task in tasks):
            try:
                pictures[source] = open_picture(source)
            except InvalidInput as error:
                broken[source] = str(error)
        good = [task for task in tasks if task.source in pictures]
        answered = iter(self._generate(good, pictures, seed) if good else ())
        return [
            TaskAnswer("", error=broken[task.source]) if task.source in broken else next(answered)
            for task in tasks
        ]

    def _generate(self, tasks: Sequence[Task], pictures: Mapping[str, Any], seed: int | None) -> list[TaskAnswer]:
        questions = [
            Question(self._asker.prompt(task.prompt, raw=self._raw), (pictures[task.source],), task.id)
            for task in tasks
        ]
        with warnings.catch_warnings():
            # A gate may stay closed for one batch; whether it did for the whole run is in the result.
            warnings.filterwarnings("ignore", message=".*never fired", category=UserWarning)
            batches = self._attached.answer(
                questions, lambda part: self._decoding(part, seed), traced=self._tilts or self._judges
            )
        return [answer for batch in batches for answer in self._answers(batch)]

    def _answers(self, batch: Batch) -> list[TaskAnswer]:
        return [
            TaskAnswer(
                answer.text, len(answer.tokens), facts=self._facts(batch, row), told=kept(_told(batch, row))
            )
            for row, answer in enumerate(batch.answers)
        ]

    def _facts(self, batch: Batch, row: int) -> dict[str, float]:
        """The share of an answer's tokens that were tilted; what was asked and taken back, and what that cost."""
        facts: dict[str, float] = {}
        if batch.trace is None:
            return facts
        if self._tilts:
            facts["fired"] = round(batch.trace.fired_tokens()[row] / max(len(batch.answers[row].tokens), 1), 4)
        return facts | asked(_told(batch, row))

    def _decoding(self, asked: Sequence[Question], seed: int | None) -> dict[str, Any]:
        # Some methods draw noise of their own; the batch is always cut the same way, so this repeats.
        torch.manual_seed(stream_seed(seed or 0, asked[0].name))
        method = self._attached.method
        options = needed(method) | {"max_new_tokens": self._max_new_tokens}
        if method.samples_only:
            options |= {"temperature": self._temperature, "top_p": 1.0}
            streams = [torch.Generator().manual_seed(stream_seed(seed or 0, each.name)) for each in asked]
            return options | ({"generators": streams} if "generators" in method.options else {})
        if seed is not None and not method.beams_only:
            seeds = [stream_seed(seed, each.name) for each in asked]
            noise: OwnNoise | HashedNoise
            if self._noise == "hash":
                noise = HashedNoise(seeds, self._temperature)
            else:
                noise = OwnNoise(seeds, self._temperature, self._asker.ends)
            options["logits_processor"] = LogitsProcessorList([noise])
        return options


def _told(batch: Batch, row: int) -> Mapping[str, Any]:
    told = () if batch.trace is None else batch.trace.told
    return told[row] if row < len(told) else {}


@lru_cache(maxsize=1)  # a method and its controls run one after the other on one model
def loaded_once(model: str, device: str | None, loading: tuple[tuple[str, Any], ...]) -> Loaded:
    """The model of `seewhen.load`, which the next one who asks gets too."""
    return load(model, device=device, **dict(loading))
