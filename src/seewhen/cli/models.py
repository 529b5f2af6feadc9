"""`seewhen models`: the model families that are tested, and how."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

_WIDE = 110  # columns in which all that is known of a family stands on a line


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List the model families that are supported, and how each is tested.

    Other vision-language models of transformers work too if they answer a few generic questions; ask about
    any of them, without loading it, with `seewhen doctor --model`.

    seewhen models

    seewhen doctor --model Qwen/Qwen2.5-VL-7B-Instruct

    seewhen doctor --model shape:llava-1.5-13b
    """
    from seewhen.backbones.shapes import PREFIX, SHAPES
    from seewhen.backbones.supported import BROUGHT, FAMILIES, HOW

    if as_json:
        facts = {"families": [asdict(family) for family in FAMILIES], "how": HOW}
        facts["brought"] = BROUGHT
        facts["shapes"] = {PREFIX + name: shape["checkpoint"] for name, shape in SHAPES.items()}
        typer.echo(json.dumps(facts, indent=2))
        return
    from rich.table import Table

    from seewhen.cli.tables import table_console

    console = table_console()
    table = Table(box=None, pad_edge=False)
    narrow = console.width < _WIDE
    for column in ("family", "for example", *(() if narrow else ("tested", "note"))):
        table.add_column(column, no_wrap=narrow or column == "for example")  # names are there to be copied
    for family in FAMILIES:
        told = (", ".join(family.tested), family.note)
        table.add_row(family.model_type, family.checkpoint, *(() if narrow else told))
        for line in filter(None, told if narrow else ()):
            table.add_row("", f"  {line}", style="dim")
    console.print(table)
    console.print()
    for how, meaning in HOW.items():
        console.print(f"{how}: {meaning}", soft_wrap=True, highlight=False)
    console.print()
    for name, meaning in BROUGHT.items():
        console.print(f"{name}: {meaning}", soft_wrap=True, highlight=False)
    console.print()
    names = ", ".join(PREFIX + name for name in SHAPES)
    console.print(
        f"Sizes that `seewhen doctor` knows without a checkpoint: {names}", soft_wrap=True, highlight=False
    )
