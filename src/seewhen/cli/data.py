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

    Exits with 1 if a file is broken or differs, or one that was asked for with --bench is missing,
    or if there is none at all.

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
    if any(f.state in bad for f in findings) or all(f.state == "missing" for f in findings):
        raise typer.Exit(1)


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    colors = {"ok": "green", "present": "green", "differs": "yellow", "broken": "red"}
    table = Table()
    for title in ("file", "state"):
        table.add_column(title, no_wrap=True)
    for title in ("where", "note"):
        table.add_column(title, overflow="fold")
    missing: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.state == "missing":
            missing.setdefault(finding.source, []).append(finding)
        else:
            state = Text(finding.state, style=colors[finding.state])
            table.add_row(finding.key, state, Text(finding.path), Text(finding.note))
    if table.rows:
        console.print(table)
    for source, files in missing.items():
        names = ", ".join(file.key for file in files)
        console.print(Text(f"missing: {names}\n  expected for example as {files[0].path}, from {source}"))
