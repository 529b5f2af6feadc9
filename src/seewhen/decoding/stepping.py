"""One pass after the other: what a judged call wants of a model in the middle of decoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutputWithPast

if TYPE_CHECKING:
    from seewhen.decoding.sequence import CachedSequence


class Stepper(Protocol):
    """A model in the middle of decoding; a judged call does not care how its steps are made."""

    @property
    def cache(self) -> Any:
        """Keys and values so far."""

    @property
    def chosen(self) -> list[int] | None:
        """The tokens that the newest pass has chosen by itself; None where only the host chooses."""

    def step(self, tokens: Tensor | None, ahead: bool) -> Tensor:
        """Feed one token (rows,) to each row, or what it chose itself; logits (rows, vocabulary), float32.

        With `ahead` the next pass may begin with its own choice before that is judged.
        """

    def go_back(self, row: int, columns: list[int]) -> None:
        """The row's tokens in these columns never were."""

    def arrive(self) -> None:
        """See to it that the cache holds all that was fed."""


@dataclass
class Growing:
    """Steps of the model as it is, on the cache that `generate` made: transformers' own way, bit for bit."""

    model: Any
    kwargs: dict[str, Any]
    ids: Tensor
    before: int = 0  # columns that a branch put before the prompt: `generate` does not know of them

    @property
    def cache(self) -> Any:
        """Keys and values so far."""
        return self.kwargs["past_key_values"]

    @property
    def chosen(self) -> None:
        """The host chooses."""

    def step(self, tokens: Tensor | None, ahead: bool) -> Tensor:
        """As in transformers' `_sample`."""
        assert tokens is not None
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        inputs = self.model.prepare_inputs_for_generation(self.ids, next_sequence_length=1, **self.kwargs)
        outputs = self.model(**inputs, return_dict=True)
        self.kwargs = self.model._update_model_kwargs_for_generation(
            outputs, self.kwargs, is_encoder_decoder=False
        )
        return outputs.logits[:, -1].to(copy=True, dtype=torch.float32, device=tokens.device)

    def arrive(self) -> None:
        """It always does."""

    def go_back(self, row: int, columns: list[int]) -> None:
        """In the mask and the positions that `generate` carries along."""
        mask, positions = self.kwargs.get("attention_mask"), self.kwargs.get("position_ids")
        if mask is None:
            mask = self.ids.new_ones(self.ids.shape[0], self.ids.shape[1] + 1)
        mask = mask.clone()
        mask[row, [column - self.before for column in columns]] = 0
        self.kwargs["attention_mask"] = mask
        if positions is not None:
            positions = positions.expand(*positions.shape[:-2], len(mask), -1).clone()
            positions[..., row, -1] -= len(columns)
            self.kwargs["position_ids"] = positions


@dataclass(frozen=True)
class Course:
    """What plain decoding of one prompt did, pass by pass: whoever follows it need not do it again."""

    tokens: list[int]
    logits: tuple[Tensor, ...]  # (1, vocabulary) each
    cache: Any
    sequence: CachedSequence

    def begins_like(self, logits: Tensor, sequence: CachedSequence) -> bool:
        """Whether it is the same prompt, bit for bit, watched in the same way."""
        watched = self.sequence.recorder.buffers.keys() == sequence.recorder.buffers.keys()
        return watched and torch.equal(self.logits[0], logits)


@dataclass
class Following(Growing):
    """Goes along a course as long as the same tokens are fed, without a pass; then on from there."""

    course: Course = field(kw_only=True)
    sequence: CachedSequence = field(kw_only=True)
    along: int = 0  # passes that were not made
    left: bool = False

    def step(self, tokens: Tensor | None, ahead: bool) -> Tensor:
        """The course's logits, or a pass."""
        assert tokens is not None
        more = self.along + 1 < len(self.course.logits)
        if not self.left and more and tokens.tolist() == [self.course.tokens[self.along]]:
            self.along += 1
            return self.course.logits[self.along].clone()
        self.arrive()
        return super().step(tokens, ahead)

    def go_back(self, row: int, columns: list[int]) -> None:
        """From here on the way is another."""
        self.arrive()
        super().go_back(row, columns)

    def arrive(self) -> None:
        """Everything as if the passes had been made here: columns, what `generate` carries along, records."""
        passes, start = 0 if self.left else self.along, self.course.sequence.prompt_length
        self.left = True
        if not passes:
            return
        for number, layer in enumerate(self.course.cache.layers):
            columns = slice(start, start + passes)
            self.cache.update(layer.keys[:, :, columns], layer.values[:, :, columns], number)
        self.ids = torch.cat([self.ids, self.ids.new_tensor([self.course.tokens[:passes]])], dim=1)
        self.kwargs = self.model._update_model_kwargs_for_generation(
            BaseModelOutputWithPast(past_key_values=self.cache), self.kwargs, num_new_tokens=passes
        )
        recorder, made = self.sequence.recorder, slice(1, passes + 1)
        for number in range(passes):
            recorder.advance(number + 3)  # as many steps must fit, and the next
        for name, records in recorder.buffers.items():
            records[made] = self.course.sequence.recorder.buffers[name][made]
