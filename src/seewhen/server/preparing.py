"""Prompts made ready for the model while their requests wait: tokens, and pictures as the model sees them.

Each model has one thread for it, with a processor of its own: processors are not for several threads. Prompts that
were prepared one by one are put together as the processor itself would have prepared them together.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from seewhen.asking.memory import is_out_of_memory
from seewhen.backbones.prompts import host_inputs
from seewhen.errors import SeewhenError
from seewhen.server.jobs import Job

Inputs = dict[str, Any]


class Unprocessable(SeewhenError):
    """A prompt that the model's processor cannot take."""


class Preparing:
    """Prepares the prompts of one model."""

    def __init__(self, model: Any, processor: Any, name: str) -> None:
        self._model, self._processor = model, copy.deepcopy(processor)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"seewhen-prompts-{name}")

    def begin(self, job: Job, wanted: Callable[[Job], bool], then: Callable[[], None]) -> None:
        """Prepare the prompt of a job if it is `wanted`, and call `then` in any case."""

        def work() -> Inputs | None:
            return self._prepared(job) if wanted(job) and not job.cancelled else None

        job.prepared = self._thread.submit(work)
        job.prepared.add_done_callback(lambda future: then())

    def _prepared(self, job: Job) -> Inputs:
        with processing():
            inputs = host_inputs(self._model, self._processor, [job.images], [job.prompt])
        if self._model.device.type != "cuda":
            return inputs
        # Pinned, so that it is copied to the device while the host goes on.
        return {name: value.pin_memory() if isinstance(value, Tensor) else value for name, value in inputs.items()}

    def close(self) -> None:
        """Nothing more will come."""
        self._thread.shutdown(wait=False, cancel_futures=True)


@contextmanager
def processing() -> Iterator[None]:
    """Around a call of a processor: they refuse in their own ways."""
    try:
        yield
    except SeewhenError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise Unprocessable(
            "The model's processor refused the prompt.", "Check the number and shape of the images."
        ) from error


def together(parts: Sequence[Mapping[str, Any]], pad: int) -> Inputs | None:
    """Prompts prepared one by one as one batch, padded on the left; None where their pictures differ in form."""
    if len(parts) == 1:
        return dict(parts[0])
    names = set(parts[0])
    if any(set(part) != names for part in parts):
        return None
    length = max(part["input_ids"].shape[1] for part in parts)
    found: Inputs = {}
    for name in parts[0]:
        values = [part[name] for part in parts]
        if not all(isinstance(value, Tensor) for value in values):
            return None
        if all(value.shape == part["input_ids"].shape for value, part in zip(values, parts, strict=True)):
            fill = pad if name == "input_ids" else 0
            values = [torch.nn.functional.pad(v, (length - v.shape[1], 0), value=fill) for v in values]
        elif len({(value.shape[1:], value.dtype) for value in values}) > 1:
            return None
        found[name] = torch.cat(values)
    return found
