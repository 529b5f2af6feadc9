"""Reading a prompt apart from decoding it: what it leaves can then join others in the middle of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.decoding.calls import Call
from seewhen.decoding.fast.step import LIVE, one_token
from seewhen.decoding.judging import read_prompt
from seewhen.decoding.kernels.capturing import turn
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.decoding.sequence import Sequence
    from seewhen.decoding.session import Session


@dataclass(frozen=True)
class Read:
    """Prompts that were read together, and what each leaves for its next step."""

    model: Any  # whose loop it was: some models hand their embeddings to another
    sequence: Sequence
    cache: Any
    logits: Tensor  # (rows, vocabulary), float32: of the first token
    positions: Tensor | None  # (..., rows, 1): of the first token
    constants: Mapping[str, Any]  # arguments of the next forward pass that stay
    padding: tuple[int, ...]  # columns on the left of each row in which nothing lies
    notes: tuple[str, ...]

    @property
    def columns(self) -> int:
        """Of the cache, with padding."""
        return int(self.cache.layers[0].keys.shape[2])

    def length(self, row: int) -> int:
        """Columns that row `row` takes."""
        return self.columns - self.padding[row]


def read(session: Session, model: Any, inputs: Mapping[str, Any]) -> Read:
    """Read the prompts of `inputs` (as for `generate`) with the session's method, which is on the model."""
    found: dict[str, Any] = {}

    def loop(model: Any, input_ids: Tensor, generation_config: Any = None, **kwargs: Any) -> Tensor:
        for name in ("logits_processor", "stopping_criteria"):
            kwargs.pop(name, None)
        found["logits"], found["kwargs"] = read_prompt(model, input_ids, generation_config, kwargs)
        found["model"], found["ids"] = model, input_ids
        return input_ids

    call = Call(dict(inputs), session.placement)
    device = session.backbone.head.weight.device
    with session.calls.running(call), turn(device):
        # max_new_tokens: some configurations bound the whole length below that of a prompt with its image.
        model.generate(**inputs, custom_generate=loop, max_new_tokens=1, do_sample=False, num_beams=1)
        sequence, kwargs = call.sequence, found["kwargs"]
        assert sequence is not None
        ids = torch.nn.functional.pad(found["ids"], (0, 1))  # whichever token follows: only its place matters
        model = found["model"]
        step = one_token(model.prepare_inputs_for_generation(ids, next_sequence_length=1, **kwargs))
    cache = kwargs["past_key_values"]
    constants = {name: value for name, value in step.items() if name not in LIVE}
    padding = _padding(sequence, inputs.get("attention_mask"), int(cache.layers[0].keys.shape[2]))
    return Read(
        model, sequence, cache, found["logits"], step.get("position_ids"), constants, padding, tuple(call.notes)
    )


def _padding(sequence: Sequence, mask: Any, columns: int) -> tuple[int, ...]:
    """Columns on the left that a row, with its branches, does not use."""
    if sequence.rows == 1 and not sequence.widened:
        return (0,)
    if sequence.hidden is not None:
        empty = sequence.hidden.view(1 + sequence.branches, sequence.rows, -1).all(dim=0)
    elif isinstance(mask, Tensor) and mask.shape[1] == columns:
        empty = ~mask.bool()
    else:
        raise UnsupportedMode("These prompts cannot be read together.", "Read them one by one.")
    return tuple((~empty).to(torch.uint8).argmax(dim=1).tolist())
