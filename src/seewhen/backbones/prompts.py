"""From pictures and text to what a model reads: its own chat template, its processor, its device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from seewhen.backbones.pictures import open_image
from seewhen.backbones.repeated_pictures import once_per_picture

Picture = str | Path | bytes | Image.Image


def chat_prompt(processor: Any, text: str, images: int) -> str:
    """The prompt for `text` with `images` images before it, in the model's own template."""
    if getattr(processor, "chat_template", None):
        content: list[dict[str, str]] = [{"type": "image"}] * images + [{"type": "text", "text": text}]
        messages = [{"role": "user", "content": content}]
        return processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    if getattr(processor, "num_query_tokens", None) is not None:
        return text  # (Instruct)BLIP's processor puts the image before the text by itself
    image_token = getattr(processor, "image_token", "<image>")
    return str(image_token) * images + text


def model_inputs(
    model: Any, processor: Any, images: Sequence[Sequence[Picture]], prompts: Sequence[str]
) -> dict[str, Any]:
    """Processor outputs for a batch of finished prompts, on the model's device and in its dtype."""
    return on_device(model, host_inputs(model, processor, images, prompts))


def on_device(model: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The same where the model is. What lies in pinned memory is on its way when this returns."""
    move = {name: value for name, value in inputs.items() if hasattr(value, "to")}
    return {**inputs, **{name: value.to(model.device, non_blocking=True) for name, value in move.items()}}


def host_inputs(
    model: Any, processor: Any, images: Sequence[Sequence[Picture]], prompts: Sequence[str]
) -> dict[str, Any]:
    """Processor outputs for a batch of finished prompts in the model's dtype, where the processor leaves them."""
    distinct = {id(picture): picture for row in images for picture in row}
    ready = {key: open_image(picture) for key, picture in distinct.items()}
    opened = [[ready[id(picture)] for picture in row] for row in images]
    pictures: Any = opened if any(opened) else None
    prepare = once_per_picture(processor, opened)
    batch = prepare(images=pictures, text=list(prompts), return_tensors="pt", padding=True)
    floats = {n: value for n, value in batch.items() if hasattr(value, "to") and value.is_floating_point()}
    return {**batch, **{name: value.to(model.dtype) for name, value in floats.items()}}
