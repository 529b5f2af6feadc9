"""`seewhen describe`: what is in a picture, word by word, with the risk of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.options import DecodingFlags, OutputFlags, PictureModelFlags, flags

ImageFile = Annotated[
    Path, typer.Argument(help="The picture: JPEG, PNG, WebP, GIF, BMP, TIFF.", show_default=False)
]
MethodName = Annotated[
    str,
    typer.Option("--method", "-M", help="NAME[:PRESET][:name=value], such as cai:paper; see `seewhen methods`."),
]
Parameters = Annotated[
    list[str] | None, typer.Option("--param", "-p", help="name=value of the method; may be repeated.")
]
TraceFile = Annotated[
    Path | None, typer.Option("--trace", help="Save the full trace as FILE.json and FILE.safetensors.")
]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(flags(describe))


def describe(
    image: ImageFile,
    *,
    method: MethodName = "cai",
    param: Parameters = None,
    trace: TraceFile = None,
    output: OutputFlags,
    decoding: DecodingFlags,
    model: PictureModelFlags,
) -> None:
    """Describe a picture, with words coloured by how unsure the model was.

    seewhen describe scene.png

    seewhen describe photo.jpg --model photo

    seewhen describe photo.jpg --model llava-hf/llava-1.5-7b-hf --html seen.html

    seewhen describe scene.png --method cai:paper --param contrast=5 --do-sample --seed 3
    """
    from seewhen.cli.answer import answer_one
    from seewhen.cli.asking import DESCRIBE

    answer_one(image, DESCRIBE, method, param or [], model, decoding, output, trace)
