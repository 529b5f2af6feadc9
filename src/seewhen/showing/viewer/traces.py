"""Pages of saved traces: one, or several side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.backbones.pictures import open_image
from seewhen.errors import InvalidInput
from seewhen.showing.viewer.page import image_payload
from seewhen.showing.viewer.payload import Truth, answer_facts, answer_maps, attention_layers, page_payload

if TYPE_CHECKING:
    from PIL import Image

    from seewhen.decoding.trace import Trace

_SPECIAL = re.compile(r"\s*<[^\s<>]+>\s*")  # </s>, <|im_end|>, <end_of_turn>
_BLANK = (154, 154, 154)
_BLANK_SIDE = 384


def traces_in(path: Path) -> list[Path]:
    """The traces of a folder (`seewhen compare --trace FOLDER`), regular first; or the one that `path` is."""
    if not path.is_dir():
        return [path]
    found = [file for file in path.glob("*.json") if file.with_name(f"{file.stem}.safetensors").exists()]
    return sorted(found, key=lambda file: (file.stem != "regular", file.name))


def traces_page(
    traces: Sequence[Trace],
    labels: Sequence[str],
    images: Sequence[Image.Image],
    names: Sequence[str],
    truth: Truth | None = None,
) -> dict[str, Any]:
    """The payload of some traces of the same question. `images` are those of all rows, in order; may be empty."""
    first = traces[0]
    for trace, label in zip(traces, labels, strict=True):
        if not trace.texts:
            raise InvalidInput(
                f"The trace {label} does not know its words.",
                "Make it with `seewhen describe --trace`, or save trace.with_texts(tokenizer); a handle's page "
                "takes processor=.",
            )
        if trace.image_tokens != first.image_tokens:
            raise InvalidInput(
                f"{labels[0]} and {label} are about different pictures or questions.", "View them one by one."
            )
    layers = attention_layers(traces)
    pages = []
    used = 0
    for row in range(first.rows):
        count = first.pictures_in(row)
        part = slice(used, used + count)
        shown = [image_payload(image, name) for image, name in zip(images[part], names[part], strict=True)]
        used += count
        answers = [
            {**trace_facts(trace, label, row, truth), "maps": answer_maps(trace, layers, row)}
            for trace, label in zip(traces, labels, strict=True)
        ]
        meta = first.meta
        pages.append(
            page_payload(
                answers,
                shown or [image_payload(_blank(first, row, i), "") for i in range(max(count, 1))],
                model=str(meta.get("model", first.model)),
                prompt=prompt_of(first, row),
                truth=truth,
                about={
                    name: value
                    for name, value in meta.items()
                    if name not in ("model", "prompt", "prompts", "image", "label")
                },
            )
        )
    if len(pages) == 1:
        return pages[0]
    samples = [
        {**page, "id": f"row {row}", "note": page["answers"][0]["text"][:80], "wrong": None}
        for row, page in enumerate(pages)
    ]
    return {"format": pages[0]["format"], "samples": samples, "rest": ""}


def trace_facts(trace: Trace, label: str, row: int, truth: Truth | None = None) -> dict[str, Any]:
    """The words of one row, with what is known of each."""
    return answer_facts(trace, label=label, text=_text(trace, row), row=row, special=_special(trace), truth=truth)


def count_pictures(trace: Trace) -> int:
    """How many pictures all rows have together."""
    return sum(map(trace.pictures_in, range(trace.rows)))


def own_pictures(trace: Trace) -> list[Image.Image]:
    """The pictures that travel with a trace; none unless they are all there."""
    whole = len(trace.pictures) == count_pictures(trace)
    return [open_image(file) for file in trace.pictures] if whole else []


def prompt_of(trace: Trace, row: int) -> str:
    """What was asked of a row, where that is known."""
    meta = trace.meta
    prompts = meta.get("prompts")
    if isinstance(prompts, list | tuple) and row < len(prompts):
        return str(prompts[row])
    return str(meta.get("prompt", ""))


def _text(trace: Trace, row: int) -> str:
    return "".join(text for text in trace.texts[row] if not _SPECIAL.fullmatch(text)).strip()


def _special(trace: Trace) -> frozenset[int]:
    """The tokens that are no words, told by their texts: a saved trace has no tokenizer."""
    return frozenset(
        int(trace.tokens[step, row])
        for row, texts in enumerate(trace.texts)
        for step, text in enumerate(texts)
        if _SPECIAL.fullmatch(text)
    )


def _blank(trace: Trace, row: int, image: int) -> Image.Image:
    """A grey area of the shape of the patch grid, where the picture is not known."""
    from PIL import Image

    grids = [g for g in (trace.grids[row] if trace.grids else ()) if g.image == image and g.kind == "image"]
    ratio = grids[-1].height / grids[-1].width if grids else 1.0
    return Image.new("RGB", (_BLANK_SIDE, max(round(_BLANK_SIDE * ratio), 1)), _BLANK)
