"""Branches: extra rows of the same batch that see something else (no image, a noised image, ...).

A branch is not a second model call. Each main row gets one more row per branch, left-padded to the
same length, with zero tilt; one forward pass serves all. The mask, the positions and the cache of a
branch row are its own, and beam search reorders it with its main row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.sequence import Prefill, Sequence


@dataclass
class BranchRows:
    """The prompt of a branch: as many rows as the main rows, padded on the left."""

    embeds: Tensor  # (rows, positions, d)
    padding: Tensor  # (rows, positions), bool
    position_ids: Tensor  # like the main rows' position ids
    order: Tensor  # (rows, positions): which main position each position came from (for 4-D masks)
    extras: dict[str, Any] = field(default_factory=dict)


class Branch:
    """Base class: a frozen description of what the extra rows see."""

    def rows(self, prefill: Prefill) -> BranchRows:
        """Build the rows from the main rows' prompt."""
        raise UnsupportedMode(f"{type(self).__name__} does not say what its rows see.")


@dataclass(frozen=True)
class TextOnly(Branch):
    """The same prompt without its image tokens (the paper's p(y | x))."""

    def rows(self, prefill: Prefill) -> BranchRows:
        """Remove the image columns, close the gap and pad on the left."""
        keep = ~(prefill.image_mask | prefill.padding)
        order = torch.argsort(keep.to(torch.uint8), dim=1, stable=True)
        embeds = prefill.embeds.gather(1, order[..., None].expand_as(prefill.embeds))
        padding = ~keep.gather(1, order)
        positions = (~padding).cumsum(dim=1).sub(1).clamp(min=0)
        shape = prefill.position_ids.shape
        # Text has one position for all axes of multimodal rotary embeddings.
        position_ids = positions.expand(shape).to(prefill.position_ids.dtype)
        extras: dict[str, Any] = {}
        if "visual_pos_masks" in prefill.extras:
            extras["visual_pos_masks"] = torch.zeros_like(padding)
        return BranchRows(embeds, padding, position_ids, order, extras)


def prefill_arguments(
    kwargs: dict[str, Any], prefill: Prefill, built: list[BranchRows], sequence: Sequence
) -> dict[str, Any]:
    """The decoder's prefill arguments with the branch rows appended; sets the sequence's row state."""
    padding = torch.cat([prefill.padding, *(rows.padding for rows in built)])
    sequence.hidden = padding
    last_main = prefill.position_ids[..., -1]
    shifts = [last_main - rows.position_ids[..., -1] for rows in built]
    if last_main.dim() > 1:  # after the prompt all axes of a multimodal position advance together
        shifts = [shift[-1] for shift in shifts]
    sequence.shift = torch.cat(shifts)
    kwargs["inputs_embeds"] = torch.cat([prefill.embeds, *(rows.embeds for rows in built)])
    kwargs["position_ids"] = torch.cat([prefill.position_ids, *(rows.position_ids for rows in built)], dim=-2)
    kwargs["attention_mask"] = _prefill_mask(kwargs.get("attention_mask"), padding, built)
    for name in prefill.extras:
        _append_extra(kwargs, name, built)
    return kwargs


def _append_extra(kwargs: dict[str, Any], name: str, built: list[BranchRows]) -> None:
    """Row-wise extras: masks are concatenated by row, lists of visual features by feature."""
    own = kwargs[name]
    added = [rows.extras[name] for rows in built if name in rows.extras]
    if not added:
        return
    if isinstance(own, Tensor):
        kwargs[name] = torch.cat([own, *added])
    else:
        kwargs[name] = [torch.cat(parts) for parts in zip(own, *added, strict=True)]


def _prefill_mask(mask: Any, padding: Tensor, built: list[BranchRows]) -> Any:
    if isinstance(mask, dict):
        return {name: _prefill_mask(part, padding, built) for name, part in mask.items()}
    if mask is None or mask.dim() == 2:
        return ~padding
    parts = [mask]
    for rows in built:
        parts.append(_reordered_mask(mask, rows))
    return torch.cat(parts)


def _reordered_mask(mask: Tensor, rows: BranchRows) -> Tensor:
    """A 4-D mask (rows, 1, queries, columns) of the main rows, rearranged for a branch.

    Columns past the prompt (static caches) stay where they are. Padding positions see themselves
    only: a row that sees nothing would turn into NaN.
    """
    queries, columns = mask.shape[-2:]
    order = rows.order
    moved = mask.gather(2, order[:, None, :, None].expand(-1, mask.shape[1], -1, columns))
    rest = torch.arange(queries, columns, device=mask.device).expand(order.shape[0], -1)
    index = torch.cat([order, rest], dim=1)[:, None, None]
    moved = moved.gather(3, index.expand(-1, mask.shape[1], queries, -1))
    blocked = torch.nn.functional.pad(rows.padding, (0, columns - queries))[:, None, None]
    itself = torch.eye(queries, columns, dtype=torch.bool, device=mask.device)
    itself = itself & rows.padding[:, None, :, None]
    if moved.dtype == torch.bool:
        return (moved & ~blocked) | itself
    moved = moved.masked_fill(blocked, torch.finfo(moved.dtype).min)
    return moved.masked_fill(itself, 0.0)


def decode_arguments(kwargs: dict[str, Any], sequence: Sequence, past: int | Tensor) -> dict[str, Any]:
    """The decoder's arguments of a single-token step with the branch rows appended."""
    assert sequence.hidden is not None and sequence.shift is not None
    rows, repeats = sequence.rows, 1 + sequence.branches
    embeds = kwargs["inputs_embeds"]
    kwargs["inputs_embeds"] = embeds.repeat(repeats, 1, 1)
    positions = kwargs.get("position_ids")
    if positions is None:
        positions = torch.zeros((rows, 1), dtype=torch.long, device=embeds.device) + past
    if positions.shape[-2] != rows:  # one row of positions for the whole batch
        positions = positions.expand(*positions.shape[:-2], rows, -1)
    shift = torch.cat([torch.zeros(rows, dtype=sequence.shift.dtype, device=embeds.device), sequence.shift])
    tiled = torch.cat([positions] * repeats, dim=-2)
    kwargs["position_ids"] = tiled - shift[:, None]
    kwargs["attention_mask"] = _decode_mask(kwargs.get("attention_mask"), sequence, past)
    return kwargs


def _decode_mask(mask: Any, sequence: Sequence, past: int | Tensor) -> Any:
    assert sequence.hidden is not None
    if isinstance(mask, dict):
        return {name: _decode_mask(part, sequence, past) for name, part in mask.items()}
    hidden = sequence.hidden
    if mask is None or mask.dim() == 2:
        # Dynamic caches: the prompt's columns as built, then one column per generated token.
        generated = int(past) + 1 - hidden.shape[1]
        return torch.nn.functional.pad(~hidden, (0, generated), value=True)
    tiled = mask.repeat(1 + sequence.branches, 1, 1, 1)
    columns, prompt = mask.shape[-1], hidden.shape[1]
    if isinstance(past, int) and columns < past + 1:
        # A sliding-window layer of a dynamic cache holds the last columns only.
        blocked = torch.nn.functional.pad(hidden, (0, past + 1 - prompt))[:, None, None, -columns:]
    else:
        blocked = torch.nn.functional.pad(hidden, (0, columns - prompt))[:, None, None]
    if tiled.dtype == torch.bool:
        return tiled & ~blocked
    return tiled.masked_fill(blocked, torch.finfo(tiled.dtype).min)
