"""What `describe` and `ask` share: one question, one method."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from seewhen.cli.options import AUTO, DecodingFlags, OutputFlags, PictureModelFlags, check_writable, refuse_trace
from seewhen.cli.starting import starting

Flags = TypeVar("Flags", bound=PictureModelFlags)


def answer_one(
    path: Path,
    question: str,
    method: str,
    settings: Sequence[str],
    model: PictureModelFlags,
    decoding: DecodingFlags,
    output: OutputFlags,
    trace: Path | None,
) -> None:
    """Answer, and show it the way the flags ask for."""
    from seewhen.cli import output as showing
    from seewhen.methods.grammar import check, choose

    # What can be wrong is found before torch is imported and the model loaded, which take long.
    check([method], settings)
    decoding.check()
    refuse_trace(model, trace)
    for file in (output.html, trace):
        check_writable(file)
    image, model = checked_picture(path, model)
    with starting():
        (chosen,) = choose([method], settings)
        console, asked = prepare(image, question, model, decoding)
    full = console.is_terminal or output.as_json or output.html is not None or trace is not None
    reply = asked.answer(
        chosen, full=full, streamer=None if output.as_json else streamer_for(console, asked.asker)
    )
    shown = showing.Shown(asked.asker, [reply])
    about = showing.about(model, decoding, asked.asker, str(path), question)
    if output.as_json:
        showing.print_json(shown.to_json(about))
    else:
        if any(note.startswith("not streamed") for note in reply.notes):
            console.print(showing.coloured(shown.facts[0]), soft_wrap=not console.is_terminal)
        shown.notes()
        if console.is_terminal:
            footer(console, shown)
    if output.html is not None:
        showing.write_page(output.html, shown.page(image, path.name, about))
    if trace is not None:
        showing.save_trace(trace, reply, about)


def checked_picture(path: Path, model: Flags) -> tuple[Any, Flags]:
    """The picture and the model for it; a wrong name is refused here, at no cost."""
    from seewhen.asking.default_model import model_for
    from seewhen.backbones.loading import check_name
    from seewhen.backbones.pictures import open_image

    model.loading()
    image = open_image(path)
    if served := model.remote():
        return image, dataclasses.replace(model, model=served.model)
    if model.model == AUTO:
        model = dataclasses.replace(model, model=model_for(image))
    check_name(model.model, model.revision)
    return image, model


def prepare(image: Any, question: str, model: PictureModelFlags, decoding: DecodingFlags) -> tuple[Any, Any]:
    """The console, and the loaded (or served) model with the question."""
    from rich.console import Console

    from seewhen.asking.default_model import warn_about_photograph
    from seewhen.asking.one_picture import PictureQuestion
    from seewhen.asking.opening import open_model

    if served := model.remote():
        from seewhen.served.one_picture import ServedQuestion

        return Console(highlight=False), ServedQuestion(served, image, question, decoding)
    with Console(stderr=True).status("loading the model"):
        loaded = open_model(model.model, model.loading())
    warn_about_photograph(model.model, image)
    return Console(highlight=False), PictureQuestion(loaded, image, question, decoding)


def streamer_for(console: Any, asker: Any) -> Callable[[Callable[[], float | None]], Any]:
    """A maker of streamers that print to `console`."""
    from seewhen.cli.streaming import WordStreamer

    return lambda entropy: WordStreamer(console, asker.tokenizer, asker.special, entropy)


def footer(console: Any, shown: Any) -> None:
    """Under an answer on a terminal: what the colours mean, how often the method fired."""
    from rich.text import Text

    from seewhen.cli.output import fired_line
    from seewhen.cli.streaming import legend

    facts = shown.facts[0]
    line = Text(f"{facts['label']}: {len(facts['tokens'])} tokens", style="dim")
    if facts["fired"] is not None or facts["asked"] is not None:
        line.append(f"{', tilted' if facts['fired'] is not None else ','} {fired_line(facts)}")
    sys.stdout.flush()
    console.print(line)
    console.print(legend())
