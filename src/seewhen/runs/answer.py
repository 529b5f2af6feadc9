"""The real answerer: a model, a method, and decoding that does not depend on who shares the batch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList

from seewhen.answering import chat_prompt, model_inputs
from seewhen.attaching import attach
from seewhen.backbone import Backbone
from seewhen.errors import InvalidInput
from seewhen.image_branches import AlteredImage
from seewhen.loading import Loaded, load
from seewhen.methods.base import Parts
from seewhen.runs.controls import from_json
from seewhen.runs.features import shared_features
from seewhen.runs.noise import HashedNoise, Noise, OwnNoise, stream_seed
from seewhen.runs.pictures import open_picture
from seewhen.runs.prefix import PrefixHook, can_share, lay_out
from seewhen.runs.work import Answer, Task
from seewhen.speed import Fast
from seewhen.tilting import Tilt


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
        self._model, self._processor = _loaded(model, device, tuple(sorted((loading or {}).items())))
        self._tokenizer = getattr(self._processor, "tokenizer", self._processor)
        self._method = from_json(dict(method)).prepare(self._tokenizer)
        eos = self._model.generation_config.eos_token_id
        self._ends = frozenset([eos] if isinstance(eos, int) else eos or ())
        backbone = Backbone.of(self._model)
        parts = self._method.parts(backbone)
        self._tilts = bool(parts.interventions) and all(isinstance(i, Tilt) for i in parts.interventions)
        self._shares = _may_share(parts)
        self._max_new_tokens, self._raw, self._temperature = max_new_tokens, raw_prompt, temperature
        self._noise = noise
        self._open = ExitStack()
        self._handle = self._open.enter_context(attach(self._model, self._method, fast=fast))
        self._backbone, self._prefix = backbone, None
        if self._shares and can_share(backbone):
            # After the method's own hooks: these see the whole prompt, what follows reads only the rest.
            looks = [i.relevance.source_layer for i in parts.interventions if isinstance(i, Tilt)]
            self._prefix = PrefixHook(backbone, looks)
            self._open.callback(self._prefix.remove)

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
        together = [good] if self._method.batches else [[task] for task in good]
        answered = iter([a for part in together if part for a in self._generate(part, pictures, seed)])
        return [
            Answer("", error=broken[task.source]) if task.source in broken else next(answered) for task in tasks
        ]

    @torch.inference_mode()
    def _generate(self, tasks: Sequence[Task], pictures: Mapping[str, Any], seed: int | None) -> list[Answer]:
        prompts = [self._prompt(task) for task in tasks]
        inputs = model_inputs(self._model, self._processor, [[pictures[task.source]] for task in tasks], prompts)
        inputs = self._share(inputs, [task.source for task in tasks])
        # Some methods draw noise of their own; the batch is always cut the same way, so this repeats.
        torch.manual_seed(stream_seed(seed or 0, tasks[0].id))
        with warnings.catch_warnings():
            # A gate may stay closed for one batch; whether it did for the whole run is in the result.
            warnings.filterwarnings("ignore", message=".*never fired", category=UserWarning)
            output = self._model.generate(**inputs, **self._decoding(tasks, seed))
        rows = [self._up_to_end(row) for row in _without_prompt(output, inputs["input_ids"]).tolist()]
        fired = self._fired(rows)
        return [
            Answer(self._tokenizer.decode(row, skip_special_tokens=True).strip(), len(row), facts=facts)
            for row, facts in zip(rows, fired, strict=True)
        ]

    def _share(self, inputs: dict[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Computes what the questions about one image have in common only once, where that is exact."""
        if self._shares:
            inputs = shared_features(self._model, inputs, sources) or inputs
        if self._prefix is not None:
            found = lay_out(self._backbone, inputs, sources, self._tokenizer.pad_token_id)
            self._prefix.expect(found[1] if found else None)
            inputs = found[0] if found else inputs
        return inputs

    def _up_to_end(self, tokens: list[int]) -> list[int]:
        """Tokens up to and with the first that ends the answer; what follows is padding."""
        last = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens) - 1)
        return tokens[: last + 1]

    def _fired(self, rows: Sequence[Sequence[int]]) -> list[dict[str, float]]:
        """The share of each answer's tokens that were tilted, for methods that tilt."""
        if not self._tilts:
            return [{} for _ in rows]
        fired = self._handle.trace.fired_tokens()
        return [{"fired": round(n / len(row), 4)} for n, row in zip(fired, rows, strict=True)]

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
            options |= {"do_sample": True, "temperature": self._temperature, "top_k": 0, "top_p": 1.0}
            streams = [torch.Generator().manual_seed(stream_seed(seed or 0, task.id)) for task in tasks]
            return options | {"generators": streams}
        options["do_sample"] = False
        if seed is not None:
            seeds = [stream_seed(seed, task.id) for task in tasks]
            noise: OwnNoise | HashedNoise
            if self._noise == "hash":
                noise = HashedNoise(seeds, self._temperature)
            else:
                noise = OwnNoise(seeds, self._temperature, self._ends)
            options["logits_processor"] = LogitsProcessorList([noise])
        return options


def _without_prompt(output: Tensor, prompt: Tensor) -> Tensor:
    """The new tokens: most models return the prompt before them, some do not."""
    length = prompt.shape[1]
    return output[:, length:] if torch.equal(output[:, :length], prompt) else output


def _may_share(parts: Parts) -> bool:
    """Only where nothing looks at the pixels, acts inside the vision tower or on more than the newest row."""
    tilts = all(type(intervention) is Tilt for intervention in parts.interventions)  # a subclass may do more
    return tilts and parts.loop is None and not any(isinstance(b, AlteredImage) for b in parts.branches)


@lru_cache(maxsize=1)  # a method and its controls run one after the other on one model
def _loaded(model: str, device: str | None, loading: tuple[tuple[str, Any], ...]) -> Loaded:
    return load(model, device=device, **dict(loading))


def build(device: str | None = None, **options: Any) -> ModelAnswerer:
    """For `Maker`: an answerer from plain options, in any process."""
    return ModelAnswerer(device=device, **options)
