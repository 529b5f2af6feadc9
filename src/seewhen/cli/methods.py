"""`seewhen methods`: every method with its parameters, presets and where each preset's values come from."""

from __future__ import annotations

import dataclasses
import json
import typing
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from seewhen.methods.base import Method, Preset


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(name="methods")(methods)


def methods(
    name: Annotated[str | None, typer.Argument(help="Show one method in detail.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List the methods, or show one with its parameters and presets.

    Examples:

      seewhen methods

      seewhen methods cai

      seewhen methods pai --json
    """
    from seewhen.methods import method_class, method_names

    classes = [method_class(n) for n in ([name] if name else method_names())]
    if as_json:
        typer.echo(json.dumps([_describe(cls) for cls in classes], indent=2, default=str))
    elif name:
        _print_one(classes[0])
    else:
        _print_all(classes)


def _parameters(cls: type[Method]) -> dict[str, dict[str, Any]]:
    """Default, type and meaning of each parameter."""
    from seewhen.methods.base import meanings

    hints, meaning = typing.get_type_hints(cls), meanings(cls)
    return {
        f.name: {
            "default": None if f.default is dataclasses.MISSING else f.default,
            "type": _type_name(hints[f.name]),
            "meaning": meaning[f.name],
        }
        for f in dataclasses.fields(cls)
    }


def _type_name(hint: Any) -> str:
    """`"a" | "b"` for literals, the plain name for classes, as written for anything else."""
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(repr, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else repr(value)


def _modes(cls: type[Method]) -> str:
    modes = ["sampling"] if not cls.beams_only else []
    if not cls.beams_only and not cls.samples_only:
        modes.insert(0, "greedy")
    if cls.beams:
        modes.append("beams")
    if cls.batches:
        modes.append("batches")
    if cls.compiles:
        modes.append("compile")
    return ", ".join(modes)


def _describe(cls: type[Method]) -> dict[str, Any]:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "source": cls.source,
        "modes": _modes(cls),
        "parameters": _parameters(cls),
        "presets": {
            n: {"values": dict(p.values), "source": p.source, "sources": dict(p.sources)}
            for n, p in cls.presets.items()
        },
    }


def _print_all(classes: list[type[Method]]) -> None:
    from rich.table import Table

    from seewhen.cli.tables import table_console

    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it does", "decoding modes", "presets"):
        table.add_column(column)
    for cls in classes:
        main = [preset for preset in cls.presets if "/" not in preset]
        cells = len(cls.presets) - len(main)
        more = [f"{cells} for a model and a data set"] if cells else []
        table.add_row(cls.name, cls.summary, _modes(cls), ", ".join(main + more))
    table_console().print(table)
    typer.echo("\n`seewhen methods NAME` shows parameters and the source of every preset.")


def _print_one(cls: type[Method]) -> None:
    from rich.table import Table
    from rich.text import Text

    from seewhen.cli.tables import table_console

    console = table_console()
    console.print(f"[bold]{cls.name}[/bold]: {cls.summary}\nsource: {cls.source}\nmodes: {_modes(cls)}\n")
    if dataclasses.fields(cls):
        table = Table("parameter", "default", "meaning", box=None, pad_edge=False)
        for name, known in _parameters(cls).items():
            meaning = Text(known["meaning"] + " ").append(f"({known['type']})", style="dim")
            table.add_row(name, _shown(known["default"]), meaning)
        console.print(table)
    cells = {name: preset for name, preset in cls.presets.items() if "/" in name and not preset.sources}
    for name, preset in cls.presets.items():
        if name in cells:
            continue
        console.print(f"\npreset [bold]{name}[/bold]  ({preset.source})", highlight=False)
        for key, value in preset.values.items():
            origin = f"   [dim]{preset.sources[key]}[/dim]" if key in preset.sources else ""
            console.print(f"  {key} = {value!r}{origin}", highlight=False)
        for key in (key for key in preset.sources if key not in preset.values):
            console.print(f"  {key}: default   [dim]{preset.sources[key]}[/dim]", highlight=False)
    if cells:
        _print_cells(console, cells)


def _print_cells(console: Console, cells: Mapping[str, Preset]) -> None:
    """Presets for one model and data set, a line each: they share most values."""
    from rich.table import Table

    keys = list(dict.fromkeys(key for cell in cells.values() for key in cell.values))
    told = {key: [repr(cell.values[key]) if key in cell.values else "" for cell in cells.values()] for key in keys}
    apart = [key for key in keys if len(set(told[key])) > 1]
    console.print("\npresets for a model and a data set", highlight=False)
    for key in (key for key in keys if key not in apart):
        console.print(f"  {key} = {told[key][0]}", highlight=False)
    table = Table("  preset", *apart, "source", box=None, pad_edge=False)
    for number, (name, cell) in enumerate(cells.items()):
        table.add_row(f"  {name}", *(told[key][number] for key in apart), cell.source)
    console.print(table)
