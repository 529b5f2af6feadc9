"""The real answerer: a model, a method, and decoding that does not depend on who shares the batch.

Sampling uses the Gumbel trick: adding Gumbel noise to the log-probabilities and taking the largest is
sampling from them, exactly. The noise of a sample comes from a stream of its own, made from the seed
and the sample's id, so the same sample with the same seed gets the same noise in any batch, on any
machine, and after any restart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from seewhen.answering import chat_prompt, model_inputs
from seewhen.attaching import attach
from seewhen.errors import InvalidInput
from seewhen.loading import Loaded, load
from seewhen.runs.controls import from_json
from seewhen.runs.pictures import open_picture
from seewhen.runs.work import Answer, Task


def stream_seed(seed: int, name: str) -> int:
    """A number for one sample's random stream."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1


class OwnNoise(LogitsProcessor):
    """Adds each row's own Gumbel noise to its scores at temperature T: the largest is then a sample."""

    def __init__(self, seeds: Sequence[int], temperature: float = 1.0) -> None:
        self._streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        self._temperature = temperature

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        # -log of an exponential variable is a Gumbel variable. Drawn on the CPU: a GPU's generator
        # gives other numbers on other cards.
        waits = torch.stack(
            [torch.empty(scores.shape[-1]).exponential_(generator=stream) for stream in self._streams]
        )
        return scores.float() / self._temperature - waits.log().to(scores.device)


class ModelAnswerer:
    """Answers tasks with a model. `method` is a description as `Method.to_json` gives it."""

    def __init__(
        self,
        model: str,
        method: Mapping[str, Any],
        max_new_tokens: int,
        raw_prompt: bool = False,
        temperature: float = 1.0,
        device: str | None = None,
        dtype: str = "auto",
        attention: str | None = None,
        revision: str | None = None,
    ) -> None:
        self._model, self._processor = _loaded(model, device, dtype, attention, revision)
        self._tokenizer = getattr(self._processor, "tokenizer", self._processor)
        self._method = from_json(dict(method))
        self._max_new_tokens, self._raw, self._temperature = max_new_tokens, raw_prompt, temperature
        self._open = ExitStack()
        self._handle = self._open.enter_context(attach(self._model, self._method))

    def close(self) -> None:
        """Takes the method off the model again."""
        self._open.close()

    def answer(self, tasks: Sequence[Task], seed: int | None) -> list[Answer]:
        """Answers in order; a task whose image cannot be opened gets an error instead."""
        pictures: dict[str, Any] = {}
        broken: dict[str, str] = {}
        for source in dict.fromkeys(task.source for task in tasks):
            try:
                pictures[source] = open_picture(source)
            except InvalidInput as error:
                broken[source] = str(error)
        good = [task for task in tasks if task.source in pictures]
        answered = iter(self._generate(good, pictures, seed) if good else [])
        return [
            Answer("", error=broken[task.source]) if task.source in broken else next(answered) for task in tasks
        ]

    @torch.inference_mode()
    def _generate(self, tasks: Sequence[Task], pictures: Mapping[str, Any], seed: int | None) -> list[Answer]:
        prompts = [self._prompt(task) for task in tasks]
        inputs = model_inputs(self._model, self._processor, [[pictures[task.source]] for task in tasks], prompts)
        # Some methods draw noise of their own; the batch is always cut the same way, so this repeats.
        torch.manual_seed(stream_seed(seed or 0, tasks[0].id))
        self._model.generate(**inputs, **self._decoding(tasks, seed))
        trace = self._handle.trace
        tilted = trace.fired_tokens() if trace.tilted_layers else None
        answers = []
        for row, length in enumerate(trace.lengths):
            text = self._tokenizer.decode(trace.tokens[:length, row].tolist(), skip_special_tokens=True)
            facts = {} if tilted is None else {"fired": round(tilted[row] / max(length, 1), 4)}
            answers.append(Answer(text.strip(), length, facts=facts))
        return answers

    def _prompt(self, task: Task) -> str:
        if not self._raw:
            return chat_prompt(self._processor, task.prompt, 1)
        return task.prompt.replace("<image>", str(getattr(self._processor, "image_token", "<image>")))

    def _decoding(self, tasks: Sequence[Task], seed: int | None) -> dict[str, Any]:
        options: dict[str, Any] = {
            "max_new_tokens": self._max_new_tokens,
            "pad_token_id": self._tokenizer.pad_token_id,
        }
        if self._method.beams_only:
            return options | {"num_beams": 5, "do_sample": False}
        if self._method.samples_only:
            # top_k=0: the library's default of 50 would cut silently.
            return options | {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0}
        options["do_sample"] = False
        if seed is not None:
            noise = OwnNoise([stream_seed(seed, task.id) for task in tasks], self._temperature)
            options["logits_processor"] = LogitsProcessorList([noise])
        return options


@lru_cache(maxsize=1)  # a method and its controls run one after the other on one model
def _loaded(model: str, device: str | None, dtype: str, attention: str | None, revision: str | None) -> Loaded:
    options = {"attn_implementation": attention, "revision": revision}
    return load(model, device=device, dtype=dtype, **{k: v for k, v in options.items() if v is not None})


def build(device: str | None = None, **options: Any) -> ModelAnswerer:
    """For `Maker`: an answerer from plain options, in any process."""
    return ModelAnswerer(device=device, **options)
