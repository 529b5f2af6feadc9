"""`seewhen data`: are the benchmarks' files there, and are they the published ones?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from seewhen.bench.data import Finding


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    data = typer.Typer(help="The benchmarks' files in a folder of yours.", no_args_is_help=True)

    @data.callback()
    def _keep_subcommand() -> None:
        """Typer would fold a single command into its parent."""

    data.command()(check)
    app.add_typer(data, name="data")


def check(
    folder: Annotated[Path, typer.Argument(help="Folder with the benchmarks' files, as published.")],
    benchmark: Annotated[
        list[str] | None,
        typer.Option("--bench", help="Only this one (may be repeated): pope, chair, mme, amber."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Lists every expected file: there or not, the published content or another, and where to get it.

    Exits with 1 if a file is broken or differs, or one that was asked for with --bench is missing.

    seewhen data check ~/benchmarks --bench pope
    """
    from seewhen.bench.data import BENCHMARKS
    from seewhen.bench.data import check as look
    from seewhen.errors import InvalidInput

    unknown = sorted(set(benchmark or ()) - set(BENCHMARKS))
    if unknown:
        raise InvalidInput(f"There is no benchmark {unknown[0]!r}.", f"Use some of {', '.join(BENCHMARKS)}.")
    findings = look(folder, benchmark or BENCHMARKS)
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print_table(findings)
    bad = {"broken", "differs"} | ({"missing"} if benchmark else set())
    if any(finding.state in bad for finding in findings):
        raise typer.Exit(1)


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colors = {"ok": "green", "present": "green", "differs": "yellow", "broken": "red", "missing": "dim"}
    table = Table("file", "state", "where", "note")
    for finding in findings:
        state = Text(finding.state, style=colors[finding.state])
        table.add_row(finding.key, state, Text(finding.path), Text(finding.note))
    Console().print(table)
