"""`seewhen try`: which method helps this model on these pictures?"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seewhen.asking.options import TRIED
from seewhen.cli.check import JudgingFlags
from seewhen.cli.options import LoadingFlags, Settings, check_folder, flags
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.showing.trying import Tryout


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are chosen."""

    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="The longest answer, in tokens.")
    ] = 64
    do_sample: Annotated[
        bool, typer.Option("--do-sample", help="Sample instead of taking the likeliest token.")
    ] = False
    temperature: Annotated[float | None, typer.Option("--temperature", help="Of sampling; 1 unless given.")] = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of sampling; every method starts from it.")] = 0

    def check(self) -> None:
        """Refuse what would silently do nothing."""
        if self.temperature is not None and not self.do_sample:
            raise InvalidInput("--temperature does nothing in greedy decoding.", "Add --do-sample.")
        if self.temperature is not None and self.temperature <= 0:
            raise InvalidInput(
                f"--temperature {self.temperature} is none.", "Leave out --do-sample for greedy decoding."
            )


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("try")(flags(try_command))


def try_command(
    model: Annotated[str, typer.Argument(help="Hub id, checkpoint directory, photo or packaged.")],
    pictures: Annotated[
        list[str],
        typer.Argument(
            metavar="PICTURES...", help="Folders, files, patterns in quotes, or lists (one file per line)."
        ),
    ],
    *,
    methods: Annotated[
        str,
        typer.Option(
            "--methods", "--method", "-M", help="Methods by comma, or all. Regular is always among them."
        ),
    ] = TRIED,
    settings: Settings = None,
    question: Annotated[
        str | None, typer.Option("--question", "-q", help="Ask this instead of describing the pictures.")
    ] = None,
    objects: Annotated[
        Path | None,
        typer.Option(
            "--objects", help="What the pictures show: JSON, JSON lines or CSV by name, or COCO's instances."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N pictures.")] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Pictures answered together.")] = 8,
    words: Annotated[
        int, typer.Option("--words", min=0, help="So many of the most telling pictures open word by word.")
    ] = 3,
    out: Annotated[Path, typer.Option("--out", help="Folder for the answers and the page.")] = Path("tried"),
    open_: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser, or only write it.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON; opens no page.")] = False,
    sampling: SamplingFlags,
    judging: JudgingFlags,
    loading: LoadingFlags,
) -> None:
    """Try methods on your own pictures: where answers differ, what the model doubts, what it denies when asked.

    Stop it at any time; the same command goes on. More pictures or methods later: only these are computed.

    seewhen try photo photos/

    seewhen try llava-hf/llava-1.5-7b-hf 'photos/*.jpg' --methods regular,cai,vcd --limit 50

    seewhen try packaged scenes/ --objects labels.json --do-sample --seed 1 --out tried
    """
    from seewhen.backbones.loading import check_name
    from seewhen.methods.grammar import check, split_methods
    from seewhen.runs.folders import photos_of

    check(split_methods(methods), settings or [])
    sampling.check()
    loading.loading()
    check_folder(out)
    if question is not None and not question.strip():
        raise InvalidInput("The question is empty.", "Ask something, or leave it out.")
    if objects is not None and not objects.is_file():
        raise InvalidInput(f"There is no file {objects}.", "Name the one that says what the pictures show.")
    photos_of(pictures, limit)
    check_name(model, loading.revision)

    from seewhen.showing.trying import try_methods

    found = try_methods(
        model,
        pictures,
        methods,
        settings=settings or (),
        question=question,
        objects=objects,
        out=out,
        limit=limit,
        batch=batch,
        words=words,
        max_new_tokens=sampling.max_new_tokens,
        seed=sampling.seed if sampling.do_sample else None,
        temperature=1.0 if sampling.temperature is None else sampling.temperature,
        **dataclasses.asdict(judging),
        **dataclasses.asdict(loading),
    )
    if as_json:
        typer.echo(json.dumps(found.to_json(), ensure_ascii=False, allow_nan=False, indent=1))
        return
    _print(found)
    typer.echo(found.page)
    if open_:
        from seewhen.cli.view import open_page

        open_page(found.page)


def _print(found: Tryout) -> None:
    for name, why in found.outcome.tries.failed.items():
        sys.stderr.write(f"skipped: {name}: {why}\n")
    for sentence in found.summary:
        typer.echo(f"- {sentence}")
