"""`seewhen ask`: a question about a picture."""

from __future__ import annotations

from typing import Annotated

import typer

from seewhen.cli.describe import ImageFile, TraceFile
from seewhen.cli.options import AnyModelFlags, DecodingFlags, MethodOrDefault, OutputFlags, Settings
from seewhen.errors import InvalidInput


def ask(
    image: ImageFile,
    question: Annotated[str, typer.Argument(help="The question, in quotes.", show_default=False)],
    *,
    method: MethodOrDefault = None,
    settings: Settings = None,
    trace: TraceFile = None,
    output: OutputFlags,
    decoding: DecodingFlags,
    model: AnyModelFlags,
) -> None:
    """Ask a question about a picture.

    seewhen ask scene.png "Is there a dog in the image?"

    seewhen ask scene.png "How many cups are there?" --method regular --json
    """
    from seewhen.cli.answer import answer_one

    if not question.strip():
        raise InvalidInput("The question is empty.", "Ask something, or use `seewhen describe`.")

    method = model.default("cai", served="confirm") if method is None else method
    answer_one(image, question, method, settings or [], model, decoding, output, trace)
