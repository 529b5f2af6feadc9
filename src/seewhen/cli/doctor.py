"""`seewhen doctor`: what this machine and a given model can do."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="A hub id, a checkpoint directory, 'packaged', 'photo' or a size such as 'shape:llava-1.5-7b': "
            "say whether and how it is supported."
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="The dtype you would load the model in, for the memory need.")
    ] = "bfloat16",
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """Show versions, devices and attention kernels; with --model, explain it before anything is loaded.

    Only the model's configuration is read: its layer split, image tokens, memory need and the price of
    the entropy gate are told without loading a weight. A shape needs no checkpoint at all. Exits with code 1 if
    the model is not supported.

    seewhen doctor

    seewhen doctor --model packaged

    seewhen doctor --model llava-hf/llava-1.5-7b-hf --dtype float16

    seewhen doctor --model shape:qwen3.5-4b
    """
    from seewhen.backbones.loading import check_name

    if model is not None:
        check_name(model)

    from seewhen.asking.doctor import machine_facts, model_facts

    facts: dict[str, Any] = {"machine": machine_facts()}
    if model is not None:
        facts["model"] = model_facts(model, dtype)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        for title, part in facts.items():
            _print(title, part)
    if model is not None and not facts["model"]["supported"]:
        raise typer.Exit(1)


def _print(title: str, facts: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from seewhen.cli.tables import table_console

    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")  # a path is of use only whole
    for name, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        table.add_row(name.replace("_", " "), Text(shown))  # as it is: 'seewhen[serve]' is no markup
    table_console().print(table)
