"""The prompt as the decoder is given it: main rows, the rows of branches, and where the image is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.masking_utils import create_masks_for_generate

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone


@dataclass(frozen=True)
class ImageColumns:
    """Where the image tokens of each main row are: padded column indices and which of them are real."""

    columns: Tensor  # (rows, tokens), long
    valid: Tensor  # (rows, tokens), bool

    @classmethod
    def of(cls, mask: Tensor, room: int = 0) -> ImageColumns:
        """From a boolean mask (rows, positions). Reads the largest count from the device: prefill only.

        With `room` there are at least so many columns, so that prompts of one form come out.
        """
        counts = mask.sum(dim=1)
        tokens = max(int(counts.max()), 1)  # one, not real, where no row has an image: never an empty tensor
        # A stable sort brings the image positions of each row to the front, in order.
        order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)[:, :tokens]
        valid = torch.arange(tokens, device=mask.device)[None] < counts[:, None]
        missing = max(room - tokens, 0)
        return cls(pad(order.masked_fill(~valid, 0), (0, missing)), pad(valid, (0, missing)))

    def padded(self, rows: int) -> tuple[Tensor, Tensor]:
        """Columns and validity for all rows; branch rows have no valid column."""
        return pad_rows(self.columns, rows), pad_rows(self.valid, rows)


@dataclass
class Prefill:
    """What the decoder was given for the prompt, main rows only."""

    embeds: Tensor  # (rows, positions, d)
    image_mask: Tensor  # (rows, positions), bool
    padding: Tensor  # (rows, positions), bool: left padding of the main rows
    position_ids: Tensor  # (rows, positions) or (axes, rows, positions)
    input_ids: Tensor | None
    inputs: dict[str, Any]  # what the user gave to generate(), as far as known (pixel_values, ...)
    extras: dict[str, Any]  # other decoder arguments with a row dimension (deep visual features)

    @property
    def tail(self) -> Tensor:
        """The prompt tokens after the last image token of each row, as a mask."""
        after = self.image_mask.flip(1).cumsum(1).flip(1) == 0
        return after & ~self.padding


@dataclass
class BranchRows:
    """The prompt of a branch: as many rows as the main rows, padded on the left."""

    embeds: Tensor  # (rows, positions, d)
    padding: Tensor  # (rows, positions), bool
    position_ids: Tensor  # like the main rows' position ids
    # (rows, positions): which main position each position came from, for masks; tokens that the main rows
    # do not have name the text token before which they stand.
    order: Tensor
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def moved(self) -> bool:
        """Whether some position is not where it is in the main rows."""
        return not bool((self.order == torch.arange(self.order.shape[1], device=self.order.device)).all())


def pad_rows(per_main: Tensor, rows: int) -> Tensor:
    """Extend a per-main-row tensor with zeros for the branch rows, which are never tilted."""
    missing = rows - per_main.shape[0]
    if missing == 0:
        return per_main
    zeros = torch.zeros((missing, *per_main.shape[1:]), dtype=per_main.dtype, device=per_main.device)
    return torch.cat([per_main, zeros])


def own_masks(
    backbone: Backbone, embeds: Tensor, seen: Tensor, cache: Any, positions: Tensor, types: Tensor | None
) -> Any:
    """The masks of a prompt as its model makes them: by token types, where it knows such."""
    model = backbone.driver
    make = getattr(model, "create_masks_for_generate", create_masks_for_generate)
    return make(
        config=model.config,
        inputs_embeds=embeds,
        attention_mask=seen,
        past_key_values=cache,
        position_ids=positions,
        token_type_ids=types,
        is_first_iteration=True,
    )
