"""`seewhen scenes`: labelled pictures of the packaged model's world."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from seewhen.atomic import replacing, write
from seewhen.cli.groups import Command, Commands
from seewhen.cli.options import check_folder

if TYPE_CHECKING:
    from seewhen.scenes.scene import Scene
    from seewhen.scenes.world import Split


group = typer.Typer(help="Labelled pictures of the packaged model's world.", no_args_is_help=True, cls=Commands)


@group.callback()
def _keep_subcommand() -> None:
    """Typer would fold a single command into its parent."""


@group.command(cls=Command)
def render(
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures and scenes.json.")],
    n: Annotated[int, typer.Option("--n", min=1, help="How many scenes.")] = 16,
    seed: Annotated[int, typer.Option("--seed", help="Another seed, other scenes.")] = 0,
    split: Annotated[str, typer.Option("--split", help="train, val, test or shifted.")] = "test",
    artwork: Annotated[
        str | None, typer.Option("--artwork", help="noto, fluent or twemoji (never seen in training).")
    ] = None,
    questions: Annotated[
        bool, typer.Option("--questions", help="Also write POPE and MME questions and CHAIR's truth.")
    ] = False,
) -> None:
    """Draw scenes: a PNG each, and scenes.json with every object's name, box, colour and how much is covered.

    The same options give the same bytes, on every machine.

    seewhen scenes render --n 16 --seed 3 --out pictures

    seewhen scenes render --n 500 --split shifted --questions --out shifted
    """
    from rich.console import Console
    from rich.progress import track

    from seewhen import scenes

    check_folder(out)
    chosen = scenes.dataset(cast("Split", split), n, seed=seed, artwork=artwork)
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    for scene in track(chosen, "drawing", console=console, transient=True, disable=not console.is_terminal):
        with replacing(out / scene.image) as temporary:
            scenes.render(scene).save(temporary, format="PNG")
    _write_json(out / "scenes.json", [scenes.truth(scene) for scene in chosen])
    if questions:
        _questions(out, chosen)
    typer.echo(f"{n} scene{'s' * (n != 1)} in {out}, ground truth in {out / 'scenes.json'}")


def _questions(out: Path, chosen: list[Scene]) -> None:
    from seewhen.scenes import chair, mme, pope
    from seewhen.scenes.questions import KINDS, SUBTASKS

    for kind in KINDS:
        lines = "".join(json.dumps(record) + "\n" for record in pope(chosen, kind))
        write(out / f"pope_{kind}.jsonl", lines)
    for subtask in SUBTASKS:
        records = mme(chosen, subtask)
        rows = "".join(f"{r['image']}\t{r['question']}\t{r['answer']}\n" for r in records)
        write(out / f"mme_{subtask}.txt", rows)
    _write_json(out / "chair.json", chair(chosen))


def _write_json(path: Path, content: Any) -> None:
    write(path, json.dumps(content, indent=1) + "\n")
