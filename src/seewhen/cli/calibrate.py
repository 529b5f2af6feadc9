"""`seewhen calibrate`: fits the directions that VTI and ICT need, and the verdict of `confirm`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.diagnose import MaterialFlags
from seewhen.cli.groups import Command, Commands
from seewhen.cli.options import ModelFlags, check_writable, flags

Images = Annotated[
    Path | None,
    typer.Option("--images", help="Folder with the pictures; without it, packaged scenes (training split)."),
]
Samples = Annotated[
    Path | None, typer.Option("--samples", help="JSON lines about the pictures; calibration.jsonl in the folder.")
]
Out = Annotated[Path, typer.Option("--out", help="The safetensors file to write.")]


group = typer.Typer(
    help="Fit directions for vti or ict, or the verdict of confirm, on pictures that no evaluation uses.",
    no_args_is_help=True,
    cls=Commands,
)


@group.command(cls=Command)
@flags
def confirm(
    out: Annotated[Path, typer.Option("--out", help="The JSON file to write.")],
    *,
    keep: Annotated[
        float,
        typer.Option("--keep", help="The share of true objects to confirm, also on new pictures."),
    ] = 0.97,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Greedy captions; sampled ones have more inventions to learn from.")
    ] = False,
    word_offsets: Annotated[
        bool, typer.Option(help="An offset for words with enough examples; shrunk towards none.")
    ] = True,
    drafts: Annotated[
        int,
        typer.Option(
            "--drafts", min=0, max=16, help="For confirm:drafts=N: the verdict knows what N further texts name."
        ),
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Of sampling, and of the halves for fit and threshold.")] = 0,
    material: MaterialFlags,
    model: ModelFlags,
) -> None:
    """The verdict of `confirm` and `check`: labelled pictures are described, and each object said is a sample.

    Fitted on half of the pictures; on the other half the threshold is chosen that keeps the promised share.

    seewhen calibrate confirm --model packaged --scenes 400 --out verdict.json

    seewhen calibrate confirm --model photo --data coco --image-list train.txt --keep 0.95 --out verdict.json
    """
    from seewhen.verdicts.conformal import check_keep

    check_keep(keep)
    _check(out, model)
    images = material.images()

    from seewhen.asking.opening import open_model
    from seewhen.runs.verdict_fitting import fitted

    captions = material.captions(open_model(model.model, model.loading()))
    verdict = fitted(captions, images, keep=keep, offsets=word_offsets, greedy=greedy, seed=seed, drafts=drafts)
    verdict.save(out)
    facts = verdict.about
    typer.echo(
        f"{out}: fitted on {facts['mentions']} objects said, {facts['invented']} of them invented; "
        f"{100 * keep:g}% of true ones are confirmed from a probability of {verdict.threshold:.2f}. "
        f"Use it as --method confirm:{f'drafts={drafts},' if drafts else ''}verdict={out}"
    )


@group.command(cls=Command)
@flags
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
    _check(out, model)

    from seewhen.asking.opening import open_model
    from seewhen.methods.calibration_samples import demonstrations
    from seewhen.methods.vti import calibrate

    chosen = demonstrations(images, samples, count)
    loaded = open_model(model.model, model.loading())
    directions = calibrate(*loaded, chosen, masked=masked, trials=trials, seed=seed, image_strength=image_strength)
    _done("vti", directions.save(out), len(chosen))


@group.command(cls=Command)
@flags
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
    _check(out, model)

    from seewhen.asking.opening import open_model
    from seewhen.methods.calibration_samples import questions
    from seewhen.methods.ict import calibrate

    chosen = questions(images, samples, count)
    loaded = open_model(model.model, model.loading())
    _done("ict", calibrate(*loaded, chosen, blur=blur, group=group, seed=seed).save(out), len(chosen))


def _check(out: Path, model: ModelFlags) -> None:
    """What is wrong is found before torch is imported."""
    from seewhen.backbones.loading import check_name

    check_writable(out)
    check_name(model.model, model.revision)


def _done(name: str, path: Path, count: int) -> None:
    typer.echo(f"{path}: fitted on {count} samples. Use it as --method {name}:directions={path}")
