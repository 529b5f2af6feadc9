"""`seewhen compare`: methods side by side on one picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.cli.describe import ImageFile, Parameters
from seewhen.cli.options import DecodingFlags, OutputFlags, PictureModelFlags, check_writable, flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seewhen.cli.asking import Asker, Told
    from seewhen.cli.choosing import Chosen
    from seewhen.cli.showing import Shown
    from seewhen.viewer.payload import Truth

METHODS = "regular,cai,cai:contrast=3"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(flags(compare))


def compare(
    image: ImageFile,
    *,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Commas between NAME[:PRESET][:attention or :contrast][:name=value]. The first is what the "
            "others are held against.",
        ),
    ] = METHODS,
    question: Annotated[
        str | None, typer.Option("--question", "-q", help="Ask this instead of describing the picture.")
    ] = None,
    param: Parameters = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Folder for the full trace of each method.")
    ] = None,
    output: OutputFlags,
    decoding: DecodingFlags,
    model: PictureModelFlags,
) -> None:
    """Compare methods on one picture: what each said, how often it fired, what it cost.

    A --param goes to every method that has it. Costs are measured without the trace, prefill included,
    beside regular decoding in the same run.

    seewhen compare scene.png

    seewhen compare scene.png --methods regular,cai:attention,cai --param contrast=3 --html seen.html

    seewhen compare photo.jpg --model Qwen/Qwen3-VL-2B-Instruct -q "Is there a dog?" --json
    """
    from seewhen.cli import showing
    from seewhen.cli.answer import checked_picture, prepare
    from seewhen.cli.asking import DESCRIBE
    from seewhen.cli.choosing import choose_all

    decoding.check()
    check_writable(output.html)
    check_writable(None if trace is None else trace / "trace")
    specs = [spec for spec in methods.split(",") if spec.strip()]
    opened, known = checked_picture(image, specs, model)
    chosen = choose_all(specs, param or [])
    prompt = question or DESCRIBE
    console, asker = prepare(opened, prompt, known, decoding)
    told, shown = run(console, asker, chosen, quiet=output.as_json)
    about = showing.about(known, decoding, asker, str(image), prompt)
    if output.as_json:
        showing.print_json(shown.to_json(about))
    else:
        print_table(console, shown)
    if output.html is not None:
        showing.write_page(output.html, shown.page(opened, image.name, about))
    if trace is not None:
        for each in told:
            showing.save_trace(trace / re.sub(r"[^\w.+=-]+", "_", each.label), each, about)


def run(
    console: Any, asker: Asker, chosen: Sequence[Chosen], *, quiet: bool, truth: Truth | None = None
) -> tuple[list[Told], Shown]:
    """Every method's answer with full traces, streamed on a terminal, then their costs."""
    from seewhen.cli.answer import streamer_for
    from seewhen.cli.showing import Shown

    told = []
    for each in chosen:
        streams = console.is_terminal and not quiet
        if streams:
            console.rule(each.label, align="left", style="dim")
        told.append(asker.tell(each, full=True, streamer=streamer_for(console, asker) if streams else None))
    costs = asker.costs([each.method for each in told])
    return told, Shown(asker, told, costs, truth)


def print_table(console: Any, shown: Shown) -> None:
    """The table, and notes on stderr."""
    from seewhen.cli.showing import table
    from seewhen.cli.words import legend

    if console.is_terminal:
        console.print()
    else:
        console.width = max(console.width, 120)
    console.print(table(shown))
    if console.is_terminal:
        console.print(legend(), "[italic]italic[/italic] differs from the first")
    shown.notes()
