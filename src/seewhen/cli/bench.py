"""`seewhen bench`: what each method costs, on any model or only its shape."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.options import LoadingFlags, flags

WITH_CONTRAST = "cai+contrast"  # the paper's table has CAI without and with its contrast


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command()(flags(bench))


def bench(
    model: Annotated[
        str, typer.Argument(help="Hub id, checkpoint directory, packaged, photo, or a shape with random weights.")
    ] = "packaged",
    *,
    method: Annotated[
        str, typer.Option("--method", help="Names or presets, comma-separated; 'all' for the registry.")
    ] = "regular,cai,cai+contrast",
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, comma-separated.")] = "1",
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="New tokens per answer.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds; medians count.")] = 5,
    images: Annotated[
        str, typer.Option("--images", help="Images per prompt, comma-separated: how time grows with image tokens.")
    ] = "1",
    fast: Annotated[
        str, typer.Option("--fast", help="auto, off or graph; several, comma-separated, to compare.")
    ] = "auto",
    directions: Annotated[
        list[str] | None, typer.Option("--directions", help="vti=FILE or ict=FILE, from `seewhen calibrate`.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write PREFIX.json, PREFIX.md and PREFIX.png.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    loading: LoadingFlags,
) -> None:
    """Measure prefill, ms per token, tokens per second, memory, and the distance to the memory's own speed.

    seewhen bench
    seewhen bench --method all --tokens 32
    seewhen bench shape:llava-1.5-7b --dtype bfloat16 --batch 1,8,32 --fast off,graph --out llava
    """
    from seewhen.loading import check_name
    from seewhen.methods import check_names

    # What is wrong is found before torch is imported, as far as it can be.
    names = [name.strip() for name in method.split(",")]
    check_names(name for name in names if name not in ("all", WITH_CONTRAST))
    batches, pictures = _numbers("--batch", batch), _numbers("--images", images)
    check_name(model, loading.revision)

    from seewhen.cli.benching import measured

    measured(
        model,
        names,
        batches=batches,
        images=pictures,
        ways=fast.split(","),
        tokens=tokens,
        repeats=repeats,
        directions=dict(item.partition("=")[::2] for item in directions or ()),
        out=out,
        as_json=json,
        loading=loading.loading(),
    )


def _numbers(flag: str, text: str) -> list[int]:
    from seewhen.errors import InvalidInput

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise InvalidInput(f"{flag} {text} is not a list of positive numbers.", f"For example: {flag} 1,8,32.")
    return found
