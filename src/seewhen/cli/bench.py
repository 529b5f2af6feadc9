"""`seewhen bench`: what each method costs, on any model or only its shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.cli.options import LoadingFlags, MethodNames, Settings, check_writable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from seewhen.speed.measure import Cost

_METHODS = "regular,cai,cai:contrast=3"  # the paper's table has CAI without and with its contrast


def bench(
    model: Annotated[
        str, typer.Argument(help="Hub id, checkpoint directory, packaged, photo, or a shape with random weights.")
    ] = "packaged",
    *,
    method: MethodNames = _METHODS,
    settings: Settings = None,
    batch: Annotated[str, typer.Option("--batch", help="Batch sizes, comma-separated.")] = "1",
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="New tokens per answer.")] = 128,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds; methods take turns.")] = 6,
    images: Annotated[
        str, typer.Option("--images", help="Images per prompt, comma-separated: how time grows with image tokens.")
    ] = "1",
    fast: Annotated[
        str,
        typer.Option(
            "--fast", help="auto (captured steps on a GPU), off or graph; several, by comma, to compare."
        ),
    ] = "auto",
    out: Annotated[Path | None, typer.Option("--out", help="Write PREFIX.json, PREFIX.md and PREFIX.png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    loading: LoadingFlags,
) -> None:
    """Measure what methods cost: prefill, ms per token, memory, and how near that is to the memory's own speed.

    seewhen bench

    seewhen bench --method all,cai:contrast=3,vti:directions=vti.safetensors --tokens 32

    seewhen bench shape:llava-1.5-7b --dtype bfloat16 --batch 1,8,32 --fast off,graph --out llava
    """
    from seewhen.backbones.loading import check_name
    from seewhen.methods.grammar import check, choose, split_methods

    # What is wrong is found before torch is imported, as far as it can be.
    names = split_methods(method)
    check(names, settings or [])
    batches, pictures = _numbers("--batch", batch), _numbers("--images", images)
    check_name(model, loading.revision)
    for ending in (".json", ".md", ".png"):
        check_writable(out and out.with_name(out.name + ending))
    if out is not None:
        from seewhen.showing.figures.style import need_matplotlib

        need_matplotlib()

    from rich.console import Console

    from seewhen.speed.bench import measured, write

    with Console(stderr=True).status("") as status:
        result, found = measured(
            model,
            choose(names, settings or []),
            batches=batches,
            images=pictures,
            ways=fast.split(","),
            tokens=tokens,
            repeats=repeats,
            loading=loading.loading(),
            progress=status.update,
        )
    if out is not None:
        write(out, result, found)
    if as_json:
        typer.echo(json.dumps(result, indent=1))
    else:
        _show(found, result)


def _show(found: list[Cost], result: Mapping[str, Any]) -> None:
    from rich.table import Table

    from seewhen.cli.tables import table_console
    from seewhen.speed.bench import COLUMNS, cells

    # Memory comes last, and is measured on GPUs only.
    columns = COLUMNS if any(cost.peak_bytes is not None for cost in found) else COLUMNS[:-1]
    table = Table(title=f"{result['model']}, {result['dtype']}, {result['device']}")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for cost in found:
        table.add_row(*cells(cost, ranges=False)[: len(columns)])
    console = table_console()
    console.print(table)
    rate = result["read_bandwidth"] / 1e9
    sure = result["interval_holds_the_median"]
    between = (
        f"an interval that contains it with {100 * sure:.0f} % confidence" if sure else "no interval: one round"
    )
    console.print(
        "Way: off is transformers' own loop, graph captured steps, uncaptured our loop without capture (on a "
        "CPU, say). Prefill: until the first token is chosen. Ratio: to regular decoding of the same round, "
        f"{between}. Floor: the time to read weights and cache once at the {rate:.0f} GB/s that this device "
        "reads, as a share of the measured time."
    )
    for flag in result["red_flags"]:
        console.print(f"Red flag: {flag}")
    for name, why in result["left_out"].items():
        console.print(f"Left out: {name}: {why}")


def _numbers(flag: str, text: str) -> list[int]:
    from seewhen.errors import InvalidInput

    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = [0]
    if min(found) < 1:
        raise InvalidInput(f"{flag} {text} is not a list of positive numbers.", f"For example: {flag} 1,8,32.")
    return found
