"""`seewhen report`: tables and a page from runs, measured next to published."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("report")(report)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some.")],
    out: Annotated[Path, typer.Option(help="Where report.md, .tex, .json and index.html go.")] = Path("report"),
) -> None:
    """Compare runs: intervals, paired tests, the paper's figures, and in words whether a difference is real.

    seewhen report runs --out report

    seewhen report runs/pope_test_packaged_regular_greedy_1a2b3c runs/pope_test_packaged_cai_greedy_4d5e6f
    """
    from seewhen.runs.report import analyse, read_runs
    from seewhen.runs.words import findings
    from seewhen.runs.writing import write_report

    groups = analyse(read_runs(runs))
    for group in groups:
        typer.echo(group.title)
        for text in findings(group):
            typer.echo(f"  - {text}")
    files = write_report(groups, out)
    typer.echo(f"Wrote {', '.join(path.name for path in files)} to {out}")
