"""`seewhen sweep`: a grid over a method's parameters, tuned on validation images, reported on test images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.options import BenchName, MethodName, Settings, check_folder
from seewhen.cli.run_flags import (
    AskFlags,
    Controls,
    MachineFlags,
    RunModelFlags,
    ask_of,
    captured,
    machine_of,
)


def sweep_command(
    bench: BenchName,
    *,
    grid: Annotated[
        list[str], typer.Option("--grid", help="name=value,value,...; several times. l_s, gamma, lambda work.")
    ],
    method: MethodName = "cai",
    settings: Settings = None,
    metric: Annotated[str | None, typer.Option("--metric", help="Choose by it instead of by the first.")] = None,
    controls: Controls = True,
    out: Annotated[Path, typer.Option(help="Folder for the runs, plots and tables.")] = Path("sweep"),
    asked: AskFlags,
    model: RunModelFlags,
    machine: MachineFlags,
) -> None:
    """Try settings on validation images, run the best one with its controls on the test images.

    seewhen sweep pope --grid l_s=0.5,0.7,0.85 --grid gamma=0.05,0.1,0.15 --scenes 200

    seewhen sweep chair --set start_layer=0.8 --grid lambda=1,2,3,5 --seeds 3 --metric chair_i
    """
    from seewhen.methods.grammar import check, choose
    from seewhen.runs import wording
    from seewhen.runs.report import analyse, read_runs
    from seewhen.runs.report_files import write_report
    from seewhen.runs.sweep import parse_grid, sweep, typed_grid, write_sweep

    # What is wrong is found before torch is imported, as far as it can be.
    check([method], settings or [])
    check_folder(out)
    parse_grid(grid)
    ask = ask_of(bench, asked, model)
    ask.check()
    (base,) = choose([method], settings or [])
    found = sweep(
        captured(ask, asked, model),
        base,
        typed_grid(base, parse_grid(grid)),
        out,
        machine_of(machine, model),
        metric=metric,
        controls=controls,
        say=lambda text: typer.echo(text, err=True),
    )
    files = write_sweep(found, out)
    files += write_report(analyse(read_runs([out / "test"])), out / "report")
    best = ", ".join(f"{name} = {value}" for name, value in found.best.values.items())
    typer.echo(f"Best of {len(found.points)} settings on {found.tuned_on}: {best}")
    for name, metrics in found.test.items():
        typer.echo(f"  {wording.title(name)}: {found.metric.title} {wording.measured(metrics[found.metric.name])}")
    typer.echo(
        f"on {found.reported_on}, which had no part in the choice. Wrote {out}/sweep.html and {out}/report."
    )
