"""`seewhen compare`: methods side by side on one picture."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.cli.describe import ImageFile
from seewhen.cli.options import (
    AnyModelFlags,
    DecodingFlags,
    OutputFlags,
    Settings,
    check_writable,
    refuse_trace,
    usable,
)
from seewhen.cli.starting import starting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from seewhen.asking.one_picture import PictureQuestion, Reply
    from seewhen.cli.output import Shown
    from seewhen.decoding.method import Method
    from seewhen.showing.viewer.payload import Truth

METHODS = "regular,cai,cai:contrast=3"
SERVED = "regular,confirm"  # what can be asked of a server


def compare(
    image: ImageFile,
    *,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            "--method",
            "-M",
            help="Methods by comma, as in regular,cai:paper,cai:contrast=3,threshold=0.2,cai+vcd, or all. The "
            f"others are held against the first. Default: {METHODS}; with --server: {SERVED}.",
            show_default=False,
        ),
    ] = None,
    question: Annotated[
        str | None, typer.Option("--question", "-q", help="Ask this instead of describing the picture.")
    ] = None,
    settings: Settings = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Folder for the full trace of each method.")
    ] = None,
    output: OutputFlags,
    decoding: DecodingFlags,
    model: AnyModelFlags,
) -> None:
    """Compare methods on one picture: what each said, how often it fired, what it cost.

    A --set goes to every method that has the parameter. Costs are measured without the trace, prefill included,
    beside regular decoding in the same run.

    seewhen compare scene.png

    seewhen compare scene.png --methods regular,cai:attention,cai --set contrast=3 --html seen.html

    seewhen compare photo.jpg --model Qwen/Qwen3-VL-2B-Instruct -q "Is there a dog?" --json
    """
    from seewhen.asking.options import DESCRIBE
    from seewhen.cli import output as showing
    from seewhen.cli.answer import checked_picture, prepare
    from seewhen.methods.grammar import ALL, check, check_fitted, choose, split_methods

    specs = split_methods(model.default(METHODS, SERVED) if methods is None else methods)
    check(specs, settings or [])
    check_fitted([spec for spec in specs if spec != ALL], settings or [])
    decoding.check()
    refuse_trace(model, trace)
    check_writable(output.html)
    check_writable(None if trace is None else trace / "trace")
    opened, known = checked_picture(image, model)
    prompt = question or DESCRIBE
    with starting():
        chosen = choose(specs, settings or [])
        console, asked = prepare(opened, prompt, known, decoding)
    if ALL in specs:
        chosen = usable(chosen, asked.check)
    replies, shown = run(console, asked, chosen, quiet=output.as_json)
    about = showing.about(known, decoding, asked.asker, str(image), prompt)
    if output.as_json:
        showing.print_json(shown.to_json(about))
    else:
        print_table(console, shown)
    if output.html is not None:
        showing.write_page(output.html, shown.page(opened, image.name, about))
    if trace is not None:
        for each in replies:
            showing.save_trace(trace / re.sub(r"[^\w.+=-]+", "_", each.label), each, about)


def run(
    console: Any,
    asked: PictureQuestion,
    chosen: Sequence[Method],
    *,
    quiet: bool,
    truth: Truth | None = None,
    timed: bool = True,
) -> tuple[list[Reply], Shown]:
    """Every method's answer with full traces, streamed on a terminal, then (`timed`) their costs."""
    from seewhen.cli.answer import streamer_for
    from seewhen.cli.output import Shown
    from seewhen.methods.grammar import label

    def begin(method: Method, out: Any) -> Any:
        if quiet or not console.is_terminal:
            return None
        if out is not None:  # in a process of its own
            console.file = out
        console.rule(label(method), align="left", style="dim")
        return streamer_for(console, asked.asker)

    def say(text: str) -> None:
        console.file.write(text)
        console.file.flush()

    replies = list(asked.answers(chosen, begin, say))
    costs = asked.costs([each.method for each in replies]) if timed else None
    return replies, Shown(asked.asker, replies, costs, truth)


def print_table(console: Any, shown: Shown) -> None:
    """The table, and notes on stderr."""
    from seewhen.cli.output import table
    from seewhen.cli.streaming import legend

    if console.is_terminal:
        console.print()
    else:
        console.width = max(console.width, 120)
    console.print(table(shown, console.width))
    if console.is_terminal:
        console.print(legend(), " [italic]word[/italic] differs from the first answer")
    shown.notes()
