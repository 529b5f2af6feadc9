"""`seewhen calibrate`: fits the directions that VTI and ICT need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.options import ModelFlags, flags

Images = Annotated[
    Path | None,
    typer.Option("--images", help="Folder with the pictures; without it, packaged scenes (training split)."),
]
Samples = Annotated[
    Path | None, typer.Option("--samples", help="JSON lines about the pictures; calibration.jsonl in the folder.")
]
Out = Annotated[Path, typer.Option("--out", help="The safetensors file to write.")]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    calibrate = typer.Typer(
        help="Fit directions for vti or ict, on pictures that no evaluation uses.", no_args_is_help=True
    )
    calibrate.command()(flags(vti))
    calibrate.command()(flags(ict))
    app.add_typer(calibrate, name="calibrate")


def vti(
    out: Out,
    *,
    images: Images = None,
    samples: Samples = None,
    count: Annotated[int, typer.Option(help="How many demonstrations at most.")] = 70,
    trials: Annotated[int, typer.Option(help="Random maskings of each picture.")] = 50,
    masked: Annotated[float, typer.Option(help="Share of patches that each masking hides.")] = 0.99,
    image_strength: Annotated[
        float, typer.Option(help="Of the visual direction while the text is fitted; the original script: 0.9.")
    ] = 0.0,
    seed: int = 42,
    model: ModelFlags,
) -> None:
    """VTI: lines with image, faithful, hallucinated and, if wanted, prompt.

    seewhen calibrate vti --out vti.safetensors
    seewhen calibrate vti --model llava-hf/llava-1.5-7b-hf --images demos --out vti.safetensors
    """
    from seewhen.loading import check_name

    check_name(model.model, model.revision)

    from seewhen.calibration_samples import demonstrations
    from seewhen.cli.asking import open_model
    from seewhen.methods.vti import calibrate

    chosen = demonstrations(images, samples, count)
    loaded = open_model(model)
    directions = calibrate(*loaded, chosen, masked=masked, trials=trials, seed=seed, image_strength=image_strength)
    _done("vti", directions.save(out), len(chosen))


def ict(
    out: Out,
    *,
    images: Images = None,
    samples: Samples = None,
    count: Annotated[int, typer.Option(help="How many questions at most.")] = 1500,
    blur: Annotated[float, typer.Option(help="Radius of the blur of untrusted pictures, in pixels.")] = 5.0,
    group: Annotated[int, typer.Option(help="Numbers per group; the original code: 32.")] = 32,
    seed: int = 0,
    model: ModelFlags,
) -> None:
    """ICT: lines with image, question, answer (yes or no) and, if known, box of the object.

    seewhen calibrate ict --out ict.safetensors --count 400
    seewhen calibrate ict --model llava-hf/llava-1.5-7b-hf --images pope-train --out ict.safetensors
    """
    from seewhen.loading import check_name

    check_name(model.model, model.revision)

    from seewhen.calibration_samples import questions
    from seewhen.cli.asking import open_model
    from seewhen.methods.ict import calibrate

    chosen = questions(images, samples, count)
    loaded = open_model(model)
    _done("ict", calibrate(*loaded, chosen, blur=blur, group=group, seed=seed).save(out), len(chosen))


def _done(name: str, path: Path, count: int) -> None:
    typer.echo(f"{path}: fitted on {count} samples. Use it with --method {name} --set directions={path}")
