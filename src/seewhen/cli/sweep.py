"""`seewhen sweep`: a grid over a method's parameters, tuned on validation images, reported on test images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli import eval as options


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("sweep")(sweep_command)


def sweep_command(
    bench: options.Bench,
    grid: Annotated[
        list[str], typer.Option("--grid", help="field=value,value,...; several times. l_s, gamma, lambda work.")
    ],
    model: options.Model = "packaged",
    method: Annotated[str, typer.Option(help="The method whose parameters are swept.")] = "cai",
    parameters: options.Set = None,
    metric: Annotated[str | None, typer.Option(help="Choose by this metric instead of the first.")] = None,
    data: options.Data = "scenes",
    images: options.Images = None,
    image_list: options.ImageList = None,
    split: options.Split = None,
    style: options.Style = None,
    parser: options.ParserName = None,
    lemmatizer: options.Lemmatizer = "offline",
    scenes: options.Scenes = 500,
    limit: options.Limit = None,
    batch: options.Batch = 24,
    seeds: options.Seeds = None,
    temperature: options.Temperature = 1.0,
    max_new_tokens: options.MaxNewTokens = None,
    revision: options.Revision = None,
    dtype: options.Dtype = "auto",
    attention: options.Attention = None,
    device: options.Device = None,
    engine: options.Engine = "local",
    ray_address: options.RayAddress = None,
    workers: options.Workers = None,
    controls: options.Controls = True,
    out: Annotated[Path, typer.Option(help="Folder for the runs, plots and tables.")] = Path("sweep"),
) -> None:
    """Try settings on validation images, run the best one with its controls on the test images.

    seewhen sweep pope --grid l_s=0.5,0.7,0.85 --grid gamma=0.05,0.1,0.15 --scenes 200

    seewhen sweep chair --set start_layer=0.8 --grid lambda=1,2,3,5 --seeds 3 --metric chair_i
    """
    from seewhen.runs import words
    from seewhen.runs.evaluate import Ask, Machine
    from seewhen.runs.report import analyse, read_runs
    from seewhen.runs.sweep import parse_grid, sweep, write_sweep
    from seewhen.runs.writing import write_report

    ask = Ask(
        bench,
        data=data,
        split=split,
        style=style,
        parser=parser,
        lemmatizer=lemmatizer,
        image_list=image_list,
        images=images,
        scenes=scenes,
        limit=limit,
        seeds=seeds,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        model=model,
        revision=revision,
        dtype=dtype,
        attention=attention,
        batch=batch,
    )
    machine = Machine(engine, device.split(",") if device else (), workers, ray_address)
    found = sweep(
        ask,
        options.make_methods(method, parameters)[0],
        parse_grid(grid),
        out,
        machine,
        metric=metric,
        controls=controls,
        say=lambda text: typer.echo(text, err=True),
    )
    files = write_sweep(found, out)
    files += write_report(analyse(read_runs([out / "test"])), out / "report")
    best = ", ".join(f"{name} = {value}" for name, value in found.best.values.items())
    typer.echo(f"Best of {len(found.points)} settings on {found.tuned_on}: {best}")
    for name, metrics in found.test.items():
        typer.echo(f"  {words.title(name)}: {found.metric.title} {words.measured(metrics[found.metric.name])}")
    typer.echo(
        f"on {found.reported_on}, which had no part in the choice. Wrote {out}/sweep.html and {out}/report."
    )
