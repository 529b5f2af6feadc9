"""Reading a prompt apart from decoding it: what it leaves can then join others in the middle of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.decoding.calls import Call
from seewhen.decoding.fast.adopt import columns_for, empty_cache
from seewhen.decoding.fast.prompts import Passes, replayed
from seewhen.decoding.fast.step import LIVE, one_token
from seewhen.decoding.judging import read_prompt
from seewhen.decoding.kept import Kept
from seewhen.decoding.kernels.capturing import turn
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.decoding.sequence import CachedSequence
    from seewhen.decoding.session import Session


@dataclass(frozen=True)
class Read:
    """Prompts that were read together, and what each leaves for its next step."""

    model: Any  # whose loop it was: some models hand their embeddings to another
    sequence: CachedSequence
    cache: Any
    logits: Tensor  # (rows, vocabulary), float32: of the first token
    positions: Tensor | None  # (..., rows, 1): of the first token
    constants: Mapping[str, Any]  # arguments of the next forward pass that stay
    padding: tuple[int, ...]  # columns on the left of each row in which nothing lies
    notes: tuple[str, ...]

    @property
    def columns(self) -> int:
        """Of the cache that are filled, with padding."""
        return self.sequence.prompt_length

    def length(self, row: int) -> int:
        """Columns that row `row` takes."""
        return self.columns - self.padding[row]


class Reader:
    """Reads prompts with a session's method, which is on the model; forms that come again are replayed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._kept: Kept[tuple[Passes, Any]] = Kept()  # with the cache that such prompts are read into

    @property
    def bytes(self) -> int:
        """Of memory, of what prompts are read into."""
        layers = [layer for _, cache in self._kept.all for layer in cache.layers]
        parts = [part for layer in layers for part in (layer.keys, layer.values)]
        return sum(part.numel() * part.element_size() for part in parts)

    def read(self, model: Any, inputs: Mapping[str, Any]) -> Read:
        """Read the prompts of `inputs`, as for `generate`. What is found is good until the next is read."""
        found: dict[str, Any] = {}
        left = _left(
            inputs.get("attention_mask")
        )  # asked for now, when nothing is queued that would be waited for

        def loop(model: Any, input_ids: Tensor, generation_config: Any = None, **kwargs: Any) -> Tensor:
            for name in ("logits_processor", "stopping_criteria"):
                kwargs.pop(name, None)
            found["model"], found["ids"] = model, input_ids
            found["logits"], found["kwargs"] = self._fill(model, input_ids, generation_config, kwargs)
            return input_ids

        call = Call(dict(inputs), self.session.placement)
        device = next(self.session.backbone.decoder.parameters()).device
        with self.session.calls.running(call), turn(device):
            # max_new_tokens: some configurations bound the whole length below that of a prompt with its image.
            model.generate(**inputs, custom_generate=loop, max_new_tokens=1, do_sample=False, num_beams=1)
            sequence, kwargs, model = call.sequence, found["kwargs"], found["model"]
            assert sequence is not None
            ids = torch.nn.functional.pad(found["ids"], (0, 1))  # whichever token follows: only its place matters
            step = one_token(model.prepare_inputs_for_generation(ids, next_sequence_length=1, **kwargs))
        cache = kwargs["past_key_values"]
        constants = {name: value for name, value in step.items() if name not in LIVE}
        padding = _padding(sequence, left)
        notes = tuple(call.notes)
        return Read(model, sequence, cache, found["logits"], step.get("position_ids"), constants, padding, notes)

    def _fill(self, model: Any, ids: Tensor, config: Any, kwargs: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        """Logits of the first token, and the next step's arguments with a cache that holds the prompt."""
        embeds = kwargs.get("inputs_embeds")
        key = (len(ids), columns_for(ids.shape[1] if embeds is None else embeds.shape[1]))
        passes, before = self._kept.take(key) or (Passes(), None)
        kwargs["past_key_values"] = cache = empty_cache(model, key[1], before)
        with replayed(self.session, passes, cache, lambda: empty_cache(model, key[1], before)):
            found = read_prompt(model, ids, config, kwargs)
        self._kept.put(key, (passes, cache))  # after an error it is not kept: what it holds is unknown
        return found


def _padding(sequence: CachedSequence, left: tuple[int, tuple[int, ...]] | None) -> tuple[int, ...]:
    """Columns on the left that a row, with its branches, does not use. `left` is what the mask of the prompts
    says: its columns, and those of each row in which nothing lies."""
    if sequence.rows == 1 and not sequence.widened:
        return (0,)
    if sequence.hidden is not None:
        return _first(~sequence.hidden.view(1 + sequence.branches, sequence.rows, -1).all(dim=0))
    if left is None or left[0] != sequence.prompt_length:
        raise UnsupportedMode("These prompts cannot be read together.", "Read them one by one.")
    return left[1]


def _left(mask: Any) -> tuple[int, tuple[int, ...]] | None:
    return (mask.shape[1], _first(mask.bool())) if isinstance(mask, Tensor) and len(mask) > 1 else None


def _first(used: Tensor) -> tuple[int, ...]:
    """The first column of each row that is used."""
    return tuple(used.to(torch.uint8).argmax(dim=1).tolist())
