"""What `describe` and `ask` share: one question, one method."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seewhen.cli.options import AUTO, DecodingFlags, ModelFlags, OutputFlags, check_writable


def answer_one(
    path: Path,
    question: str,
    method: str,
    parameters: Sequence[str],
    model: ModelFlags,
    decoding: DecodingFlags,
    output: OutputFlags,
    trace: Path | None,
) -> None:
    """Answer, and show it the way the flags ask for."""
    from seewhen.cli import showing
    from seewhen.cli.choosing import choose

    # What can be wrong is found before torch is imported and the model loaded, which take long.
    decoding.check()
    for file in (output.html, trace):
        check_writable(file)
    image, model = checked_picture(path, [method], model)
    chosen = choose(method, parameters)
    console, asker = prepare(image, question, model, decoding)
    full = console.is_terminal or output.as_json or output.html is not None or trace is not None
    told = asker.tell(chosen, full=full, streamer=None if output.as_json else streamer_for(console, asker))
    shown = showing.Shown(asker, [told])
    about = showing.about(model, decoding, asker, str(path), question)
    if output.as_json:
        showing.print_json(shown.to_json(about))
    else:
        if any(note.startswith("not streamed") for note in told.notes):
            console.print(showing.coloured(shown.facts[0]), soft_wrap=not console.is_terminal)
        shown.notes()
        if console.is_terminal:
            footer(console, shown)
    if output.html is not None:
        showing.write_page(output.html, shown.page(image, path.name, about))
    if trace is not None:
        showing.save_trace(trace, told, about)


def checked_picture(path: Path, methods: Sequence[str], model: ModelFlags) -> tuple[Any, ModelFlags]:
    """The picture and the model for it; wrong names of methods and models are refused here, at no cost."""
    from seewhen.cli.asking import open_picture
    from seewhen.cli.photograph import model_for
    from seewhen.loading import check_name
    from seewhen.methods import check_names

    check_names(methods)
    model.loading()
    image = open_picture(path)
    if model.model == AUTO:
        model = dataclasses.replace(model, model=model_for(image))
    check_name(model.model, model.revision)
    return image, model


def prepare(image: Any, question: str, model: ModelFlags, decoding: DecodingFlags) -> tuple[Any, Any]:
    """The console, and the loaded model with the question."""
    from rich.console import Console

    from seewhen.cli.asking import Asker, open_model
    from seewhen.cli.photograph import warn_about_photograph

    with Console(stderr=True).status("loading the model"):
        loaded = open_model(model)
    warn_about_photograph(model.model, image)
    return Console(highlight=False), Asker(loaded, image, question, decoding)


def streamer_for(console: Any, asker: Any) -> Callable[[Callable[[], float | None]], Any]:
    """A maker of streamers that print to `console`."""
    from seewhen.cli.words import WordStreamer

    return lambda entropy: WordStreamer(console, asker.tokenizer, asker.special, entropy)


def footer(console: Any, shown: Any) -> None:
    """Under an answer on a terminal: what the colours mean, how often the method fired."""
    from rich.text import Text

    from seewhen.cli.showing import fired_line
    from seewhen.cli.words import legend

    facts = shown.facts[0]
    line = Text(f"{facts['label']}: {len(facts['tokens'])} tokens", style="dim")
    if facts["fired"] is not None:
        line.append(f", tilted {fired_line(facts)}")
    sys.stdout.flush()
    console.print(line)
    console.print(legend())
