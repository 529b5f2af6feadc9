"""Branches that see another picture: the same prompt with altered pixels.

The model's own forward embeds the altered pixels and is stopped at the door of the decoder, so that
every family (tiles, query tokens, deep visual features) is served by its own code. This happens once
per prompt, on the rows the caller gave; beams share the result.
"""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from seewhen.decoding.branches import Branch
from seewhen.decoding.prefill import BranchRows
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.prefill import Prefill

# Arguments that hold pixels, already normalised by the processor.
PIXELS = ("pixel_values", "pixel_values_videos")
# Arguments of a forward pass that say nothing about the prompt.
_NOT_THE_PROMPT = {"labels", "past_key_values", "use_cache", "inputs_embeds", "position_ids", "logits_to_keep"}


@dataclass(frozen=True, eq=False)
class AlteredImage(Branch):
    """The same prompt with other pixels. Subclasses say which."""

    backbone: Backbone

    def alter(self, pixels: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The altered pixels, of the same shape; `inputs` are all arguments of `generate`."""
        raise UnsupportedMode(f"{type(self).__name__} does not say how it alters the image.")

    def rows(self, prefill: Prefill) -> BranchRows:
        """The main rows with the image tokens of the altered pixels."""
        order = torch.arange(prefill.embeds.shape[1], device=prefill.embeds.device)
        order = order.expand(prefill.embeds.shape[:2])
        embeds, extras = prefill.embeds, prefill.extras
        if bool(prefill.image_mask.any()):
            given = [name for name in PIXELS if isinstance(prefill.inputs.get(name), Tensor)]
            if not given:
                raise UnsupportedMode(
                    "This method alters the image, but the call has image tokens without pixels.",
                    "Give pixel_values to generate(), not finished embeddings or image features.",
                )
            altered = {name: self.alter(prefill.inputs[name], prefill.inputs) for name in given}
            embeds, extras = _embedded(self.backbone, prefill, altered)
        return BranchRows(embeds, prefill.padding, prefill.position_ids, order, extras)


def _embedded(backbone: Backbone, prefill: Prefill, changes: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
    """Decoder embeddings and extras of the prompt with some inputs changed, for all main rows."""
    rows = prefill.embeds.shape[0]
    ids = prefill.inputs.get("input_ids")
    ids = prefill.input_ids if not isinstance(ids, Tensor) else ids
    if ids is None or rows % ids.shape[0]:
        raise UnsupportedMode(
            "This method alters the image, but the prompt's token ids are not known.",
            "Give input_ids to generate() or to the forward call.",
        )
    repeats = rows // ids.shape[0]
    accepted = inspect.signature(backbone.model.forward).parameters
    inputs = {
        name: value
        for name, value in prefill.inputs.items()
        if name in accepted and name not in _NOT_THE_PROMPT and not name.startswith(("output_", "return_"))
    }
    # Positions are given, because some models compute and remember them otherwise.
    inputs |= {"input_ids": ids, "position_ids": prefill.position_ids[..., ::repeats, :], **changes}
    kwargs = _decoder_arguments(backbone, inputs)
    embeds = kwargs["inputs_embeds"].to(prefill.embeds.device, prefill.embeds.dtype)
    if embeds.shape[1:] != prefill.embeds.shape[1:]:
        raise UnsupportedMode(
            f"The altered image gives {embeds.shape[1]} positions where the prompt has {prefill.embeds.shape[1]}.",
            "Give generate() the processor's inputs unchanged.",
        )
    extras = {name: _repeated(name, kwargs, repeats) for name in prefill.extras}
    return embeds.repeat_interleave(repeats, dim=0), extras


def _repeated(name: str, kwargs: dict[str, Any], repeats: int) -> Any:
    """An extra of the decoder for rows repeated in place: masks by row, visual features by their row's block."""
    value = kwargs[name]
    if isinstance(value, Tensor) or repeats == 1:
        return value.repeat_interleave(repeats, dim=0) if repeats > 1 else value
    counts = kwargs["visual_pos_masks"].sum(dim=1).tolist()
    return [torch.cat([block for block in part.split(counts) for _ in range(repeats)]) for part in value]


class _Reached(Exception):
    """The forward pass arrived at the decoder; carries its arguments."""

    def __init__(self, kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.kwargs = kwargs


def _decoder_arguments(backbone: Backbone, inputs: dict[str, Any]) -> dict[str, Any]:
    """What the model gives its decoder for `inputs`; the decoder itself does not run."""
    thread = threading.get_ident()

    def stop(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            raise _Reached(kwargs)

    # In front of the hook of the attached session, which would take this for a prompt of its own.
    handle = backbone.decoder.register_forward_pre_hook(stop, prepend=True, with_kwargs=True)
    try:
        backbone.model(**inputs, use_cache=False)
    except _Reached as reached:
        return reached.kwargs
    finally:
        handle.remove()
    raise UnsupportedMode(f"{type(backbone.model).__name__} did not call its decoder.")
