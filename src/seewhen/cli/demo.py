"""`seewhen demo`: a scene, three ways to describe it, and the page that shows what happened."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.options import DecodingFlags, ModelFlags, flags

METHODS = ("regular", "cai:attention", "cai")
CONTRAST = "contrast=3"
# The first scene of the shifted set in which regular greedy decoding names something that is not there.
# Chosen by regular decoding alone: a scene on which a method looks good would say nothing about it.
SCENE = 3


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(flags(demo))


def demo(
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder for the scene, its truth and the page.")] = Path(
        "demo"
    ),
    scene: Annotated[int, typer.Option("--scene", min=0, help="Which scene of the shifted test set.")] = SCENE,
    decoding: DecodingFlags,
    model: ModelFlags,
) -> None:
    """Draw a scene, describe it with regular decoding, CAI attention only, and CAI, and show what is true.

    seewhen demo --out demo

    seewhen demo --scene 12 --do-sample --seed 1
    """
    import json

    from seewhen.cli import showing
    from seewhen.cli.answer import checked_picture, prepare
    from seewhen.cli.asking import DESCRIBE
    from seewhen.cli.choosing import choose_all
    from seewhen.cli.compare import print_table, run
    from seewhen.errors import InvalidInput
    from seewhen.scenes import render, sample, truth
    from seewhen.viewer.page import write_text
    from seewhen.viewer.payload import Truth

    decoding.check()
    drawn = sample("shifted", scene)
    try:
        out.mkdir(parents=True, exist_ok=True)
        render(drawn).save(out / "scene.png")
    except OSError as error:
        raise InvalidInput(
            f"{out} cannot be written to: {error.strerror}.", "Name another folder with --out."
        ) from None
    write_text(out / "scene.json", json.dumps(truth(drawn), indent=1) + "\n")
    there = Truth(drawn.names)
    image, model = checked_picture(out / "scene.png", METHODS, model)
    chosen = choose_all(METHODS, [CONTRAST])
    console, asker = prepare(image, DESCRIBE, model, decoding)
    _, shown = run(console, asker, chosen, quiet=False, truth=there)
    console.print(f"The picture {out / 'scene.png'} shows: {', '.join(there.objects)}.")
    print_table(console, shown)
    console.print(
        "One scene proves nothing: others (--scene 4) come out differently, and `seewhen eval chair` measures "
        "the average.",
        soft_wrap=True,
    )
    about = showing.about(model, decoding, asker, "scene.png", DESCRIBE)
    showing.write_page(out / "seen.html", shown.page(image, "scene.png", about))
    console.print(f"Open {out / 'seen.html'} in a browser to see where each word looked.", soft_wrap=True)
