"""`generate`: the short way, from images and text to an answer with a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any

from seewhen.asking.asker import Answer, Asker, Question
from seewhen.asking.default_model import name_of
from seewhen.backbones.pictures import open_image, picture_file
from seewhen.backbones.prompts import Picture
from seewhen.decoding.method import Method
from seewhen.decoding.trace import Trace
from seewhen.errors import InvalidInput, UnsupportedMode
from seewhen.lazy import provided


@dataclass(frozen=True, repr=False)
class Answers:
    """The answers to a batch, with the traces of all rows. In a notebook they show their words.

    Examples:
        >>> answers = seewhen.generate(model, processor, "photo.jpg", "What is there?", trace=True)
        >>> answers.text
        'A dog on a bench.'
        >>> answers.page("page.html")
    """

    answers: tuple[Answer, ...]
    traces: tuple[Trace, ...]  # one, unless the batch had to be answered in parts

    @property
    def trace(self) -> Trace:
        """What happened, for all rows."""
        if len(self.traces) != 1:
            parts = len(self.traces)
            why = (
                f"These answers came in {parts} parts"
                if parts
                else "The decoding loop of this method keeps no trace"
            )
            raise UnsupportedMode(f"{why}.", "See `traces`." if parts else "Use another method.")
        return self.traces[0]

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.answers[0].text

    @property
    def texts(self) -> tuple[str, ...]:
        """All answers' texts."""
        return tuple(answer.text for answer in self.answers)

    def page(self, path: str | Path) -> Path:
        """Write one self-contained HTML page: each word, how sure the model was, and where it looked.

        With `generate(..., trace=True)` there are maps of where each word looked.

        Args:
            path: The file to write.

        Returns:
            The path.
        """
        return provided("page")(path, self)

    def _repr_html_(self) -> str:
        return provided("notebook_html")(self)

    def __repr__(self) -> str:
        first = shorten(self.text, 60, placeholder=" ...") if self.answers else ""
        more = f" and {len(self.answers) - 1} more" if len(self.answers) > 1 else ""
        return f"Answers({first!r}{more})"


def generate(
    model: Any,
    processor: Any,
    image: Picture | Sequence[Picture | Sequence[Picture] | None] | None,
    text: str | Sequence[str],
    method: str | Method = "cai",
    *,
    trace: bool | str = False,
    raw_prompt: bool = False,
    **generate_kwargs: Any,
) -> Answers:
    """Answer `text` about `image` with `method`: the short way from a picture to words.

    Args:
        model: A vision-language model of transformers, as `seewhen.load` gives it.
        processor: Its processor.
        image: A picture (path, bytes or PIL image) or a list of pictures for one text; for a list of texts a list
            with a picture, a list of pictures or None for each.
        text: The question, or a list of questions. The model's chat template is put around each.
        method: What to decode with: a method, or text such as `"cai:paper"` or `"cai+vcd"` (see `seewhen.method`).
        trace: True keeps the full trace (where each word looked), False a summary, `"replay"` the logits too.
        raw_prompt: `text` is complete, with its image tokens and template.
        **generate_kwargs: Arguments of `model.generate`: `max_new_tokens`, `do_sample`, `num_beams` and so on.

    Returns:
        The answers, with what happened while they were decoded.

    Raises:
        SeewhenError: Names the cause and the way out: a missing picture, a method that the model cannot do.

    Examples:
        >>> model, processor = seewhen.load("llava-hf/llava-1.5-7b-hf")
        >>> answers = seewhen.generate(model, processor, "photo.jpg", "What is in the image?", max_new_tokens=64)
        >>> print(answers.text, answers.trace.summary())
    """
    asker = Asker((model, processor))
    texts, rows = _batch(image, text)
    questions = [
        Question(text if raw_prompt else asker.prompt(text, len(row)), row)
        for text, row in zip(texts, rows, strict=True)
    ]
    with asker.attached(method, trace=trace) as attached:
        batches = attached.answer(questions, generate_kwargs)
    traces, done = [], 0
    for batch in batches:
        part = slice(done, done + len(batch.answers))
        done += len(batch.answers)
        if batch.trace is not None:
            complete = partial(_complete, asker=asker, rows=rows[part])
            told = batch.trace.with_texts(asker.tokenizer)
            about = {"model": name_of(model), "prompts": texts[part]}
            traces.append(replace(told, meta=about, completing=complete))
    return Answers(tuple(answer for batch in batches for answer in batch.answers), tuple(traces))


def _complete(trace: Trace, asker: Asker, rows: Sequence[Sequence[Picture]]) -> Trace:
    """With pictures, and the part of each that the model saw."""
    times = max(trace.rows // max(len(rows), 1), 1)  # several sequences may be returned for one question
    opened = [[open_image(picture) for picture in row] for row in rows for _ in range(times)]
    seen = asker.placed(trace, [[picture.size for picture in row] for row in opened])
    return replace(seen, pictures=tuple(picture_file(picture) for row in opened for picture in row))


def _batch(image: Any, text: str | Sequence[str]) -> tuple[list[str], list[tuple[Picture, ...]]]:
    if isinstance(text, str):
        return [text], [_pictures(image)]
    if not isinstance(text, Sequence) or not all(isinstance(each, str) for each in text):
        raise InvalidInput("A text is a string, or a list of strings.", "Give the question to ask.")
    texts = list(text)
    if not isinstance(image, (list, tuple)) or len(image) != len(texts):
        raise InvalidInput(
            f"{len(texts)} texts need as many images (or lists of images).",
            "Give a list with one entry per text; None for a text without an image.",
        )
    return texts, [_pictures(each) for each in image]


def _pictures(image: Any) -> tuple[Picture, ...]:
    return () if image is None else tuple(image) if isinstance(image, list | tuple) else (image,)
