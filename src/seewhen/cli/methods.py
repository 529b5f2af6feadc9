"""`seewhen methods`: every method with its parameters, presets and where each preset's values come from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from seewhen.methods.grammar import Term


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show one method in detail, or some as written anywhere: cai:paper+vcd.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List the methods, or show one with its parameters and presets.

    seewhen methods

    seewhen methods cai

    seewhen methods cai:paper+min-p

    seewhen methods pai --json
    """
    from seewhen.methods import METHODS
    from seewhen.methods.catalogue import described
    from seewhen.methods.grammar import check_names, terms

    if name:
        check_names([name])
    given = terms(name) if name else []
    found = [described(term.name) for term in given] or [described(each) for each in METHODS.working]
    if as_json:
        typer.echo(json.dumps(found, indent=2, default=str))
    elif name:
        for method, term in zip(found, given, strict=True):
            _print_one(method)
            _print_chosen(method, term)
    else:
        _print_all(found)


def _shown(value: Any) -> str:
    from seewhen.methods.grammar import as_text

    return f"{value:.6g}" if isinstance(value, float) else as_text(value)


def _print_all(methods: list[Mapping[str, Any]]) -> None:
    from rich.table import Table

    from seewhen.cli.tables import table_console

    table = Table(box=None, pad_edge=False)
    for column in ("method", "what it does", "decoding modes", "presets"):
        table.add_column(column, overflow="fold")
    for method in methods:
        main = [preset for preset in method["presets"] if "/" not in preset]
        cells = len(method["presets"]) - len(main)
        more = [f"{cells} for a model and a data set"] if cells else []
        table.add_row(method["name"], method["summary"], method["modes"], ", ".join(main + more))
    table_console().print(table)
    typer.echo("\n`seewhen methods NAME` shows parameters and the source of every preset.")


def _print_one(method: Mapping[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    from seewhen.cli.tables import table_console

    console = table_console()
    name, summary, source, modes = (method[key] for key in ("name", "summary", "source", "modes"))
    console.print(f"[bold]{name}[/bold]: {summary}\nsource: {source}\nmodes: {modes}\n")
    if method["parameters"]:
        table = Table("parameter", "default", "meaning", box=None, pad_edge=False)
        for name, known in method["parameters"].items():
            meaning = Text(known["meaning"] + " ").append(f"({known['type']})", style="dim")
            table.add_row(name, Text(_shown(known["default"])), meaning)
        console.print(table)
    presets = method["presets"]
    cells = {name: preset for name, preset in presets.items() if "/" in name and not preset["sources"]}
    for name, preset in presets.items():
        if name in cells:
            continue
        values, sources = preset["values"], preset["sources"]
        console.print(f"\npreset [bold]{name}[/bold]  ({preset['source']})", highlight=False)
        for key, value in values.items():
            origin = f"   [dim]{sources[key]}[/dim]" if key in sources else ""
            console.print(f"  {key} = {escape(_shown(value))}{origin}", highlight=False)
        for key in (key for key in sources if key not in values):
            console.print(f"  {key}: default   [dim]{sources[key]}[/dim]", highlight=False)
    if cells:
        _print_cells(console, cells)


def _print_chosen(method: Mapping[str, Any], term: Term) -> None:
    """What a preset and settings make of the defaults."""
    preset = method["presets"][term.preset]["values"] if term.preset else {}
    values = {name: _shown(value) for name, value in preset.items()} | dict(term.settings)
    part = [f"its {term.part} alone"] if term.part else []
    told = [*part, *(f"{name} = {value}" for name, value in values.items())]
    if told:
        typer.echo(f"\nas asked for: {', '.join(told)}")


def _print_cells(console: Console, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """Presets for one model and data set, a line each: they share most values."""
    from rich.table import Table

    keys = list(dict.fromkeys(key for cell in cells.values() for key in cell["values"]))
    listed = [cell["values"] for cell in cells.values()]
    told = {key: [_shown(values[key]) if key in values else "" for values in listed] for key in keys}
    apart = [key for key in keys if len(set(told[key])) > 1]
    console.print("\npresets for a model and a data set", highlight=False)
    for key in (key for key in keys if key not in apart):
        console.print(f"  {key} = {told[key][0]}", highlight=False)
    table = Table("  preset", *apart, "source", box=None, pad_edge=False)
    for number, (name, cell) in enumerate(cells.items()):
        table.add_row(f"  {name}", *(told[key][number] for key in apart), cell["source"])
    console.print(table)
