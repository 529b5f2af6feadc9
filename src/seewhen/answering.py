"""`generate`: the short way, from images and text to an answer with a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from seewhen.attaching import attach
from seewhen.errors import InvalidInput
from seewhen.images import open_image
from seewhen.methods import method as make_method
from seewhen.methods.base import Method
from seewhen.repeated import once_per_picture
from seewhen.trace import Trace

Picture = str | Path | bytes | Image.Image


@dataclass(frozen=True)
class Answer:
    """What the model said to one prompt."""

    text: str
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class Answers:
    """The answers to a batch, with the trace of all rows."""

    answers: tuple[Answer, ...]
    trace: Trace

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.answers[0].text

    @property
    def texts(self) -> tuple[str, ...]:
        """All answers' texts."""
        return tuple(answer.text for answer in self.answers)


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
    distinct = {id(picture): picture for row in images for picture in row}
    ready = {key: open_image(picture) for key, picture in distinct.items()}
    opened = [[ready[id(picture)] for picture in row] for row in images]
    pictures: Any = opened if any(opened) else None
    prepare = once_per_picture(processor, opened)
    batch = prepare(images=pictures, text=list(prompts), return_tensors="pt", padding=True)
    moved = {}
    for name, value in batch.items():
        if hasattr(value, "to"):
            value = value.to(model.device)
            value = value.to(model.dtype) if value.is_floating_point() else value
        moved[name] = value
    return moved


def generate(
    model: Any,
    processor: Any,
    image: Picture | Sequence[Picture] | Sequence[Sequence[Picture]] | None,
    text: str | Sequence[str],
    method: str | Method = "cai",
    *,
    trace: bool | str = False,
    raw_prompt: bool = False,
    **generate_kwargs: Any,
) -> Answers:
    """Answer `text` about `image` with `method`.

    One text with one image or a list of images, or a list of texts with one image each (or a list of
    images each). The model's chat template is applied unless `raw_prompt` says that `text` is complete.
    Other keyword arguments go to `model.generate`.

        answer = seewhen.generate(model, processor, "photo.jpg", "What is in the image?", max_new_tokens=64)
        print(answer.text, answer.trace.summary())
    """
    texts, rows = _batch(image, text)
    prompts = (
        texts if raw_prompt else [chat_prompt(processor, t, len(p)) for t, p in zip(texts, rows, strict=True)]
    )
    inputs = model_inputs(model, processor, rows, prompts)
    tokenizer = getattr(processor, "tokenizer", processor)
    with attach(model, make_method(method).prepare(tokenizer), trace=trace) as handle:
        model.generate(**inputs, **generate_kwargs)
        happened = handle.trace
    happened = happened.with_texts(tokenizer)
    answers = []
    for row, length in enumerate(happened.lengths):
        tokens = happened.tokens[:length, row].tolist()
        answers.append(Answer(tokenizer.decode(tokens, skip_special_tokens=True).strip(), tuple(tokens)))
    return Answers(tuple(answers), happened)


def _batch(image: Any, text: str | Sequence[str]) -> tuple[list[str], list[list[Picture]]]:
    if isinstance(text, str):
        if image is None:
            return [text], [[]]
        return [text], [list(image) if isinstance(image, (list, tuple)) else [image]]
    texts = list(text)
    if not isinstance(image, (list, tuple)) or len(image) != len(texts):
        raise InvalidInput(
            f"{len(texts)} texts need as many images (or lists of images).",
            "Give a list with one entry per text.",
        )
    return texts, [list(i) if isinstance(i, list | tuple) else [i] for i in image]
