"""One pass after the other: what a judged call wants of a model in the middle of decoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


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
