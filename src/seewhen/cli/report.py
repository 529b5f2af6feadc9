"""`seewhen report`: tables and a page from runs, measured next to published."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from seewhen.cli.options import ModelFlags, RunData, RunImages, check_folder


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories, or folders that hold some.")],
    out: Annotated[
        Path, typer.Option(help="Where report.md, .tex, .json, index.html and the pages of answers go.")
    ] = Path("report"),
    look: Annotated[
        int,
        typer.Option(
            min=0, help="Feed so many answers of each comparison through their models again, for risk and maps."
        ),
    ] = 0,
    data: RunData = None,
    images: RunImages = None,
) -> None:
    """Compare runs: intervals, paired tests, the paper's figures, and in words whether a difference is real.

    Every score on the page leads to the answers of its run, every answer to its words. Of runs over files, --data
    says where questions and pictures are.

    seewhen report runs --out report

    seewhen report runs --look 24

    seewhen report runs/pope_test_packaged_regular_greedy_1a2b3c runs/pope_test_packaged_cai_greedy_4d5e6f
    """
    check_folder(out)  # before torch is imported

    from seewhen.runs.progress import Progress
    from seewhen.runs.report import analyse, read_runs
    from seewhen.runs.report_files import write_report
    from seewhen.runs.wording import findings

    found = read_runs(runs)  # and what is wrong with these

    from seewhen.showing.viewer.answers import Look, Sources, write_answers

    groups = analyse(found)
    for group in groups:
        typer.echo(group.title)
        for text in findings(group):
            typer.echo(f"  - {text}")
    with Progress("looking again", look * len(groups), stream=sys.stderr) if look else nullcontext() as bar:
        again = Look(look, _load, bar.advance) if bar else None
        paged = write_answers(groups, out, Sources(data, images), again)
    names = [path.name for path in write_report(paged, out)] + [group.page for group in paged]
    typer.echo(f"Wrote {', '.join(names)} to {out}")


def _load(name: str) -> Any:
    from seewhen.asking.opening import open_model

    return open_model(name, ModelFlags().loading())
