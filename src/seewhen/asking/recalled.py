"""The words and pictures of a `generate` call that was not ours: from the model's own processor, and its pixels.

A script that calls `model.generate` gives tensors only. The tokenizer lies where the model came from; the pixels
are the picture as the model saw it, and become one again when the processor's scaling is taken back.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from seewhen.asking.default_model import name_of
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.loading import load_processor, tokenizer_of
from seewhen.backbones.pictures import picture_file
from seewhen.backbones.pixels import Views
from seewhen.backbones.prompts import chat_prompt
from seewhen.decoding.trace import Trace
from seewhen.errors import SeewhenError, UnsupportedMode

_MARK = "QUESTION"  # stands in a template where the text of the user goes


def recalled(trace: Trace, backbone: Backbone, inputs: dict[str, Any], processor: Any = None) -> Trace:
    """`trace` with its words, its question and its pictures, as far as they are known."""
    found = processor if processor is not None else _own_processor(backbone.model)
    if found is None:
        return trace
    tokenizer = tokenizer_of(found)
    raw = _prompts(tokenizer, backbone, inputs.get("input_ids"))
    prompts = [_bare(prompt, found, tokenizer) for prompt in raw]
    meta = {"model": name_of(backbone.model), "prompts": prompts, **trace.meta}
    told = dataclasses.replace(trace.with_texts(tokenizer), meta=meta)
    with suppress(UnsupportedMode):  # pixels in a form that is not known: the page has a grey area instead
        seen = _whole(_pictures(backbone, inputs, found), trace)
        if len(seen) == sum(map(trace.pictures_in, range(trace.rows))):
            told = dataclasses.replace(told, pictures=tuple(map(picture_file, seen)))
    return told


def _whole(views: list[Image.Image], trace: Trace) -> list[Image.Image]:
    """Of the tiles of one image, the view that shows all of it."""
    kinds = [grid.kind for row in trace.grids for grid in row]
    if len(views) == len(kinds) > 1 and kinds.count("thumbnail") == 1 and trace.rows == 1:
        return [views[kinds.index("thumbnail")]]
    return views


def _prompts(tokenizer: Any, backbone: Backbone, ids: Any) -> list[str]:
    """What was asked, without image tokens and special tokens."""
    if not isinstance(ids, Tensor):
        return []
    kept = [row[~image] for row, image in zip(ids.cpu(), backbone.image_mask(ids).cpu(), strict=True)]
    return [tokenizer.decode(row, skip_special_tokens=True).strip() for row in kept]


def _bare(prompt: str, processor: Any, tokenizer: Any) -> str:
    """The question without what the chat template puts around it, such as USER: and ASSISTANT:."""
    with suppress(Exception):  # templates are programs of others: one that refuses this leaves the prompt as it is
        before, _, after = chat_prompt(processor, _MARK, 1).partition(_MARK)
        start, end = (_plain(part, processor, tokenizer) for part in (before, after))
        if prompt.startswith(start) and prompt.endswith(end):
            return prompt.removesuffix(end).removeprefix(start).strip() or prompt
    return prompt


def _plain(part: str, processor: Any, tokenizer: Any) -> str:
    ids = tokenizer(part, add_special_tokens=False)["input_ids"]
    image = getattr(processor, "image_token", None)
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    return (text.replace(image, "") if isinstance(image, str) else text).strip()


def _own_processor(model: Any) -> Any:
    """The processor that lies beside the model's weights, or None."""
    name = getattr(model.config, "_name_or_path", "")
    if not name:
        return None
    try:
        return load_processor(name, local_files_only=True)
    except SeewhenError:
        return None


def _pictures(backbone: Backbone, inputs: dict[str, Any], processor: Any) -> list[Image.Image]:
    """The pictures in the pixels, as the model saw them."""
    pixels = inputs.get("pixel_values")
    if not isinstance(pixels, Tensor):
        return []
    sizes = inputs.get("image_sizes")
    if pixels.dim() == 5 and isinstance(sizes, Tensor) and len(sizes) == len(pixels):
        pixels = pixels[:, 0]  # of an image in tiles the first view is the whole, made square
    else:
        sizes = None
    views = Views.of(pixels, inputs, getattr(backbone.model.config, "vision_config", None)).pictures
    settings = getattr(processor, "image_processor", None)
    mean, deviation = (
        torch.tensor(getattr(settings, name, None) or default).view(-1, 1, 1)
        for name, default in (("image_mean", [0.0]), ("image_std", [1.0]))
    )
    levels = [((view.float().cpu() * deviation + mean).clamp(0, 1) * 255).round().byte() for view in views]
    found = [Image.fromarray(level.permute(1, 2, 0).numpy()) for level in levels]
    if sizes is None:
        return found
    return [picture.resize(size[::-1]) for picture, size in zip(found, sizes.tolist(), strict=True)]
