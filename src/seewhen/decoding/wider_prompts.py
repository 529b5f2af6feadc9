"""Branches whose prompt is longer than the main rows' (an inserted sentence).

All rows share one cache, so the main rows get as many columns of padding on their left. `generate`
does not know of them: positions go on counting as before, a static cache is made longer before it is
allocated, and the masks, which transformers sizes for the rows it knows, are made anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from seewhen.decoding.prefill import own_masks
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.prefill import BranchRows, Prefill
    from seewhen.decoding.sequence import CachedSequence


def widen(prefill: Prefill, built: list[BranchRows], cache: Any, backbone: Backbone) -> int:
    """Pad the main rows and shorter branches on the left to the longest branch; by how many columns."""
    length = prefill.embeds.shape[1]
    longest = max([length, *(rows.embeds.shape[1] for rows in built)])
    if longest == length:
        return 0
    extra = longest - length
    _lengthen(cache, extra, getattr(backbone.text_config, "sliding_window", None))
    _pad_left(prefill, extra)
    for rows in built:
        _pad_left(rows, longest - rows.embeds.shape[1])
    prefill.image_mask = pad(prefill.image_mask, (extra, 0))
    if prefill.input_ids is not None:
        prefill.input_ids = pad(prefill.input_ids, (extra, 0))
    return extra


def _pad_left(rows: Prefill | BranchRows, extra: int) -> None:
    rows.embeds = pad(rows.embeds, (0, 0, extra, 0))
    rows.padding = pad(rows.padding, (extra, 0), value=True)
    rows.position_ids = pad(rows.position_ids, (extra, 0))
    if "visual_pos_masks" in rows.extras:
        rows.extras = {**rows.extras, "visual_pos_masks": pad(rows.extras["visual_pos_masks"], (extra, 0))}


def _lengthen(cache: Any, extra: int, window: int | None) -> None:
    """Make room in a static cache; a dynamic one grows by itself."""
    for layer in getattr(cache, "layers", ()):
        limit = getattr(layer, "max_cache_len", None)
        if limit is None:
            continue
        if layer.is_initialized:
            raise UnsupportedMode(
                f"The branch needs {extra} more columns than this static cache was allocated for.",
                "Give generate() a fresh cache, or leave the cache to it.",
            )
        layer.max_cache_len = limit + extra
        if layer.is_sliding and window is not None:
            layer.max_cache_len = min(window, limit + extra)


def widened_mask(
    kwargs: dict[str, Any], prefill: Prefill, built: list[BranchRows], sequence: CachedSequence
) -> Any:
    """The mask of a widened prompt: a plain one for the decoder to go on from, or the model's special one."""
    given, seen = kwargs.get("attention_mask"), ~torch.cat([prefill.padding, *(rows.padding for rows in built)])
    if given is None or (isinstance(given, Tensor) and given.dim() == 2):
        return seen
    types = _token_types(prefill, built, sequence)
    cache, positions = kwargs.get("past_key_values"), kwargs["position_ids"]
    return own_masks(sequence.backbone, kwargs["inputs_embeds"], seen, cache, positions, types)


def _token_types(prefill: Prefill, built: list[BranchRows], sequence: CachedSequence) -> Tensor | None:
    """Token types of all rows, for the families whose mask depends on them; inserted tokens are text."""
    given = prefill.inputs.get("token_type_ids")
    if not isinstance(given, Tensor):
        return None
    types = given.to(prefill.embeds.device).repeat_interleave(sequence.rows // given.shape[0], dim=0)
    main = pad(types, (sequence.widened, 0))
    others = [pad(types.gather(1, rows.order), (main.shape[1] - rows.order.shape[1], 0)) for rows in built]
    return torch.cat([main, *others])


def widened_decode_mask(mask: Any, sequence: CachedSequence, past: int | Tensor) -> Tensor:
    """The plain mask of a single-token step; the decoder makes its own masks from it.

    A single text token sees all before it, in every family, so nothing special is lost.
    """
    assert sequence.hidden is not None
    if isinstance(past, int):
        columns = past + 1
    else:  # a static cache: causality hides the empty columns
        masks = mask.values() if isinstance(mask, dict) else [mask]
        columns = max(part.shape[-1] for part in masks if part is not None)
    return pad(~sequence.hidden, (0, columns - sequence.hidden.shape[1]), value=True)
