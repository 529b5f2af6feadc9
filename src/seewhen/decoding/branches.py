"""Branches: extra rows of the same batch that see something else (no image, a noised image, ...).

A branch is not a second model call. Each main row gets one more row per branch, left-padded to the
same length, with zero tilt; one forward pass serves all. The mask, the positions and the cache of a
branch row are its own, and beam search reorders it with its main row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.decoding.prefill import BranchRows, Prefill
from seewhen.decoding.wider_prompts import widened_decode_mask, widened_mask
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.decoding.sequence import CachedSequence

# Kinds of layers (keys of a dictionary of masks) with attention columns; the others are recurrent.
_ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")


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


@dataclass(frozen=True)
class SamePrompt(Branch):
    """The same prompt and image, in rows of their own that an intervention may treat differently."""

    def rows(self, prefill: Prefill) -> BranchRows:
        """A copy of the main rows."""
        order = torch.arange(prefill.embeds.shape[1], device=prefill.embeds.device)
        order = order.expand(prefill.embeds.shape[:2])
        return BranchRows(prefill.embeds, prefill.padding, prefill.position_ids, order, prefill.extras)


def prefill_arguments(
    kwargs: dict[str, Any], prefill: Prefill, built: list[BranchRows], sequence: CachedSequence
) -> dict[str, Any]:
    """The decoder's prefill arguments with the branch rows appended; sets the sequence's row state."""
    padding = torch.cat([prefill.padding, *(rows.padding for rows in built)])
    sequence.hidden = padding
    last_main = prefill.position_ids[..., -1]
    sequence.shift = torch.cat([last_main - rows.position_ids[..., -1] for rows in built], dim=-1)
    kwargs["inputs_embeds"] = torch.cat([prefill.embeds, *(rows.embeds for rows in built)])
    kwargs["position_ids"] = torch.cat([prefill.position_ids, *(rows.position_ids for rows in built)], dim=-2)
    if sequence.widened:
        kwargs["attention_mask"] = widened_mask(kwargs, prefill, built, sequence)
    else:
        kwargs["attention_mask"] = _prefill_mask(kwargs.get("attention_mask"), padding, built, sequence)
    for name, own in prefill.extras.items():
        kwargs[name] = _with_extras(own, [rows.extras[name] for rows in built if name in rows.extras])
    return kwargs


def _with_extras(own: Any, added: list[Any]) -> Any:
    """Row-wise extras: masks are concatenated by row, lists of visual features by feature."""
    if isinstance(own, Tensor):
        return torch.cat([own, *added])
    return [torch.cat(parts) for parts in zip(own, *added, strict=True)]


def _prefill_mask(mask: Any, padding: Tensor, built: list[BranchRows], sequence: CachedSequence) -> Any:
    if _plain(mask):
        return ~padding  # the decoder makes its own masks from it
    masks = mask if isinstance(mask, dict) else {"full_attention": mask}
    ready = {kind: _ready_mask(kind, masks, padding, built, sequence) for kind in masks}
    return ready if isinstance(mask, dict) else ready["full_attention"]


def _plain(mask: Any) -> bool:
    """Whether the masks say no more than padding does: causal attention, or a kernel that takes padding only."""
    parts = [mask.get(kind, ...) for kind in _ATTENTION] if isinstance(mask, dict) else [mask]
    return any(part is None or (isinstance(part, Tensor) and part.dim() == 2) for part in parts)


def _ready_mask(
    kind: str, masks: dict[str, Any], padding: Tensor, built: list[BranchRows], sequence: CachedSequence
) -> Tensor:
    """The mask of one kind of layer, which goes to the layers as it is."""
    mask = masks[kind]
    if kind not in _ATTENTION:
        return ~padding  # recurrent layers
    if not isinstance(mask, Tensor):
        raise UnsupportedMode(
            f"A branch cannot be added to an attention mask of type {type(mask).__name__}.",
            "Load the model with attn_implementation='sdpa' or 'eager', or use a method without contrast.",
        )
    parts = [mask]
    for rows in built:
        visible = _reordered(_visible(mask), rows)
        if kind != "full_attention" and rows.moved:
            # Distances have shrunk: of what full attention sees, more is near. What was seen before stays,
            # for positions of one bidirectional block see each other at any distance.
            whole = _reordered(_visible(masks["full_attention"]), rows)
            visible = whole & (visible | _near(kind, mask, sequence))
        visible = _padded_columns(visible, mask.shape[-1])
        if mask.dtype != torch.bool:
            visible = torch.zeros_like(mask).masked_fill(~visible, torch.finfo(mask.dtype).min)
        parts.append(visible)
    return torch.cat(parts)


def _visible(mask: Tensor) -> Tensor:
    """The prompt's square part of a 4-D mask, as booleans."""
    square = mask[..., : mask.shape[-2]]
    return square if square.dtype == torch.bool else square >= 0


def _reordered(visible: Tensor, rows: BranchRows) -> Tensor:
    """What the positions of a branch see, from what the main rows' positions see (rows, 1, n, n).

    Padding positions see themselves only: a row that sees nothing would turn into NaN.
    """
    order = rows.order[:, None]
    moved = visible.gather(2, order[..., None].expand_as(visible))
    moved = moved.gather(3, order[:, :, None].expand_as(visible))
    itself = torch.eye(order.shape[-1], dtype=torch.bool, device=visible.device) & rows.padding[:, None, :, None]
    return (moved & ~rows.padding[:, None, None]) | itself


def _near(kind: str, mask: Tensor, sequence: CachedSequence) -> Tensor:
    """Which columns lie in the sliding window of which position, (n, n)."""
    window = getattr(sequence.backbone.text_config, "sliding_window", None)
    if kind != "sliding_attention" or window is None:
        raise UnsupportedMode(
            f"A text-only row cannot be added to layers with {kind.replace('_', ' ')}.",
            "Use a method without contrast.",
        )
    position = torch.arange(mask.shape[-2], device=mask.device)
    return position[:, None] - position[None] < window


def _padded_columns(visible: Tensor, columns: int) -> Tensor:
    """Columns past the prompt (static caches) are still empty."""
    return torch.nn.functional.pad(visible, (0, columns - visible.shape[-1]))


def decode_arguments(kwargs: dict[str, Any], sequence: CachedSequence, past: int | Tensor) -> dict[str, Any]:
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
    shift = torch.cat([torch.zeros_like(sequence.shift[..., :rows]), sequence.shift], dim=-1)
    if positions.dim() == 2 and shift.dim() > 1:  # one position for all axes
        positions = positions.expand(*shift.shape[:-1], rows, -1)
    kwargs["position_ids"] = torch.cat([positions] * repeats, dim=-2) - shift[..., None]
    kwargs["attention_mask"] = _decode_mask(kwargs.get("attention_mask"), sequence, past)
    return kwargs


def _decode_mask(mask: Any, sequence: CachedSequence, past: int | Tensor) -> Any:
    hidden = sequence.hidden
    assert hidden is not None
    if sequence.widened:
        return widened_decode_mask(mask, sequence, past)
    if sequence.growing or _plain(mask):
        # The prompt's columns as built, then one column per generated token: all that the decoder needs to
        # make its own masks, whatever masks the model around it has prepared.
        generated = int(past) + 1 - hidden.shape[1]
        return torch.nn.functional.pad(~hidden, (0, generated), value=True)
    if isinstance(mask, dict):
        return {kind: _decode_part(kind, part, sequence, past) for kind, part in mask.items()}
    return _decode_part("full_attention", mask, sequence, past)


def _decode_part(kind: str, mask: Tensor | None, sequence: CachedSequence, past: int | Tensor) -> Tensor | None:
    """A mask of one token that goes to the layers as it is."""
    hidden = sequence.hidden
    assert hidden is not None
    if kind not in _ATTENTION:
        return None  # recurrent layers hold the prompt in their state and have nothing to mask any more
    assert mask is not None
    columns, prompt = mask.shape[-1], hidden.shape[1]
    if isinstance(past, int) and columns < past + 1:
        # A sliding-window layer holds the last columns only.
        blocked = torch.nn.functional.pad(hidden, (0, past + 1 - prompt))[:, None, None, -columns:]
    else:
        blocked = torch.nn.functional.pad(hidden, (0, columns - prompt))[:, None, None]
    tiled = mask.repeat(1 + sequence.branches, 1, 1, 1)
    if tiled.dtype == torch.bool:
        return tiled & ~blocked
    return tiled.masked_fill(blocked, torch.finfo(tiled.dtype).min)
