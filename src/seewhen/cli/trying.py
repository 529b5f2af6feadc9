"""`seewhen try`: which method helps this model on these pictures?"""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.asking.options import TRIED, TRIED_SERVED, check_possible
from seewhen.cli.check import JudgingFlags
from seewhen.cli.options import (
    DoSample,
    LoadingFlags,
    NewTokens,
    OpenPage,
    Settings,
    Temperature,
    check_folder,
    refuse,
)
from seewhen.cli.run_flags import SERVED_ELSEWHERE, ServedOftenFlags
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.served.remote import Remote
    from seewhen.showing.trying import Tryout

_BATCH, _WORDS = 8, 3


@dataclass(frozen=True)
class TriedModelFlags(ServedOftenFlags, LoadingFlags):
    """How the model is loaded, or a server that has it."""


@dataclass(frozen=True)
class SamplingFlags:
    """How tokens are chosen."""

    max_new_tokens: NewTokens = 64
    do_sample: DoSample = False
    temperature: Temperature = None
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of sampling; every method starts from it.")] = 0

    def check(self) -> None:
        """Refuse what would silently do nothing."""
        if self.temperature is not None and not self.do_sample:
            raise InvalidInput("--temperature does nothing in greedy decoding.", "Add --do-sample.")
        check_possible(temperature=self.temperature, seed=self.seed)


def try_command(
    model: Annotated[
        str,
        typer.Argument(help="Hub id, checkpoint directory, photo or packaged. Left out with --served-model."),
    ],
    pictures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PICTURES...", help="Folders, files, patterns in quotes, or lists (one file per line)."
        ),
    ] = None,
    *,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            "--method",
            "-M",
            help=f"Methods by comma, or all. Regular is always among them. Default: {TRIED}; with --server: "
            f"{TRIED_SERVED}.",
            show_default=False,
        ),
    ] = None,
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
    batch: Annotated[int, typer.Option("--batch", min=1, help="Pictures answered together.")] = _BATCH,
    words: Annotated[
        int, typer.Option("--words", min=0, help="So many of the most telling pictures open word by word.")
    ] = _WORDS,
    out: Annotated[Path, typer.Option("--out", help="Folder for the answers and the page.")] = Path("tried"),
    open_: OpenPage = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON; opens no page.")] = False,
    sampling: SamplingFlags,
    judging: JudgingFlags,
    loading: TriedModelFlags,
) -> None:
    """Try methods on your own pictures: where answers differ, what the model doubts, what it denies when asked.

    Stop it at any time; the same command goes on. More pictures or methods later: only these are computed.

    seewhen try photo photos/

    seewhen try llava-hf/llava-1.5-7b-hf 'photos/*.jpg' --methods regular,cai,vcd --limit 50

    seewhen try packaged scenes/ --objects labels.json --do-sample --seed 1 --out tried

    seewhen try photos/ --server http://127.0.0.1:8000/v1 --served-model llava
    """
    from seewhen.methods.grammar import check, split_methods
    from seewhen.runs.folders import photos_of

    check(split_methods(loading.default(TRIED, TRIED_SERVED) if methods is None else methods), settings or [])
    sampling.check()
    loading.loading()
    check_folder(out)
    if question is not None and not question.strip():
        raise InvalidInput("The question is empty.", "Ask something, or leave it out.")
    if objects is not None and not objects.is_file():
        raise InvalidInput(f"There is no file {objects}.", "Name the one that says what the pictures show.")
    asked, pictures = _asked(model, pictures or [], loading, batch, words)
    photos_of(pictures, limit)

    from seewhen.showing.trying import try_methods

    found = try_methods(
        asked,
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
        **({} if loading.server else _of_loading(loading)),
    )
    if as_json:
        from seewhen.cli.output import print_json

        print_json(found.to_json(), indent=1)
        return
    _print(found)
    typer.echo(found.page)
    if open_:
        from seewhen.cli.view import open_page

        open_page(found.page)


def _asked(
    model: str, pictures: list[str], loading: TriedModelFlags, batch: int, words: int
) -> tuple[str | Remote, list[str]]:
    """The model, or the served one, and the pictures: where a server has the model, every argument is one."""
    if served := loading.remote():
        idle = [name for name, idle in (("batch", batch != _BATCH), ("words", words != _WORDS)) if idle]
        refuse(idle, SERVED_ELSEWHERE, "Leave it out; --at-once says how much is asked at a time.")
        return served, pictures if model == served.model and pictures else [model, *pictures]
    if not pictures:
        raise InvalidInput(
            f"There is a model, {model}, and no picture." if not Path(model).exists() else "No model is named.",
            "First the model, then folders or files: seewhen try photo photos/",
        )
    from seewhen.backbones.loading import check_name

    check_name(model, loading.revision)
    return model, pictures


def _of_loading(loading: TriedModelFlags) -> dict[str, Any]:
    return {field.name: getattr(loading, field.name) for field in dataclasses.fields(LoadingFlags)}


def _print(found: Tryout) -> None:
    for name, why in found.outcome.tries.failed.items():
        sys.stderr.write(f"skipped: {name}: {why}\n")
    for sentence in found.summary:
        typer.echo(f"- {sentence}")
