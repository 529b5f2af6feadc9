"""`seewhen describe`: what is in a picture, word by word, with the risk of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.options import AnyModelFlags, DecodingFlags, MethodOrDefault, OutputFlags, Settings

ImageFile = Annotated[
    Path, typer.Argument(help="The picture: JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF, HEIC.", show_default=False)
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Save the full trace as FILE.json and FILE.safetensors.")
]


def describe(
    image: ImageFile,
    *,
    method: MethodOrDefault = None,
    settings: Settings = None,
    trace: TraceFile = None,
    output: OutputFlags,
    decoding: DecodingFlags,
    model: AnyModelFlags,
) -> None:
    """Describe a picture, with words coloured by how unsure the model was.

    seewhen describe scene.png

    seewhen describe photo.jpg --model photo

    seewhen describe photo.jpg --model llava-hf/llava-1.5-7b-hf --html seen.html

    seewhen describe scene.png --method cai:paper:contrast=5 --do-sample --seed 3
    """
    from seewhen.asking.options import DESCRIBE
    from seewhen.cli.answer import answer_one

    method = model.default("cai", served="confirm") if method is None else method
    answer_one(image, DESCRIBE, method, settings or [], model, decoding, output, trace)
