"""`seewhen demo`: a photograph, four ways to describe it, and the page that shows what happened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seewhen.cli.options import AUTO, DecodingFlags, ModelFlags, NewTokens, PictureModelFlags, check_folder
from seewhen.cli.starting import starting

if TYPE_CHECKING:
    from seewhen.showing.viewer.payload import Truth

# `coco`: the lexicon with which the averages were measured.
METHODS = ("regular", "cai", "confirm:coco", "cai+confirm:coco")
# The first scene of the shifted set in which regular greedy decoding names something that is not there.
# Chosen by regular decoding alone: a scene on which a method looks good would say nothing about it.
SCENE = 3
Photo = Literal["cat", "coffee", "astronaut", "all"]


@dataclass(frozen=True)
class SampledFlags(DecodingFlags):
    """Sampled unless told otherwise: greedily the small models say what they believe, so asking changes little."""

    max_new_tokens: NewTokens = 64
    do_sample: Annotated[
        bool, typer.Option("--do-sample/--greedy", help="Sample, or take the likeliest token.")
    ] = True


@dataclass(frozen=True)
class DemoPicture:
    """A picture of the demonstration, as it lies in the folder, and what it shows."""

    path: Path
    truth: Truth


def demo(
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures and the page.")] = Path("demo"),
    scene: Annotated[
        int | None, typer.Option("--scene", min=0, help="A drawn scene of the shifted test set instead.")
    ] = None,
    photo: Annotated[
        Photo | None,
        typer.Option("--photo", help="Which of the three photographs that come along, or all. Default: cat"),
    ] = None,
    decoding: SampledFlags,
    model: PictureModelFlags,
) -> None:
    """Describe a photograph with regular decoding, CAI, confirm and both, and show what is true.

    Takes a drawn scene where the language model for photographs is not installed, and with --model packaged.
    Sampled, because that is where asking helps these models; --greedy shows the rest.

    seewhen demo --out demo

    seewhen demo --photo all --greedy

    seewhen demo --scene 12 --seed 1
    """
    from rich.console import Console

    from seewhen.asking.default_model import knows_photographs
    from seewhen.backbones.loading import PACKAGED
    from seewhen.backbones.photo.source import INSTALL
    from seewhen.cli import output as showing
    from seewhen.cli.answer import checked_picture
    from seewhen.showing.averages import averages_of

    decoding.check()
    check_folder(out)
    console = Console(highlight=False)
    if scene is None and model.model == AUTO and not knows_photographs():
        console.print(f"A drawn scene: photographs need a language model beside ({INSTALL}).", soft_wrap=True)
        scene = SCENE
    if scene is None and photo is None and model.model == PACKAGED:
        console.print("A drawn scene: the packaged model knows nothing else.", soft_wrap=True)
        scene = SCENE
    out.mkdir(parents=True, exist_ok=True)
    subjects = _photographs(out, photo or "cat") if scene is None else [_drawn(out, scene)]
    _, known = checked_picture(subjects[0].path, model)
    pages = _pages(subjects, known, decoding)
    averages = averages_of(known.model)
    console.print(_closing(averages, "sampled" if decoding.do_sample else "greedy"), soft_wrap=True)
    pages = [{**page, "averages": averages} for page in pages]
    whole = pages[0] if len(pages) == 1 else {"format": pages[0]["format"], "samples": pages, "rest": ""}
    showing.write_page(out / "seen.html", whole)
    console.print(f"Open {out / 'seen.html'} in a browser to see where each word looked.", soft_wrap=True)


def _photographs(out: Path, wanted: Photo) -> list[DemoPicture]:
    import shutil

    from seewhen.scenes.photographs import photographs
    from seewhen.showing.viewer.payload import Truth

    found = []
    for each in photographs():
        if wanted not in (each.name, "all"):
            continue
        shutil.copyfile(each.path, out / each.path.name)
        found.append(DemoPicture(out / each.path.name, Truth(each.objects)))
    return found


def _drawn(out: Path, scene: int) -> DemoPicture:
    import json

    from seewhen.scenes import render, sample, truth
    from seewhen.showing.viewer.page import write_text
    from seewhen.showing.viewer.payload import Truth

    drawn = sample("shifted", scene)
    render(drawn).save(out / "scene.png")
    write_text(out / "scene.json", json.dumps(truth(drawn), indent=1) + "\n")
    return DemoPicture(out / "scene.png", Truth(drawn.names))


def _pages(subjects: list[DemoPicture], model: ModelFlags, decoding: DecodingFlags) -> list[dict[str, Any]]:
    """Every method on every picture: printed as a table, and as payloads of the page."""
    from rich.console import Console

    console = Console(highlight=False)
    with starting(), Console(stderr=True).status("loading the model"):
        from seewhen.asking.one_picture import PictureQuestion
        from seewhen.asking.opening import open_model
        from seewhen.asking.options import DESCRIBE
        from seewhen.backbones.pictures import open_image
        from seewhen.cli import output as showing
        from seewhen.cli.compare import print_table, run
        from seewhen.methods.grammar import choose

        chosen = choose(METHODS)
        loaded = open_model(model.model, model.loading())
    pages: list[dict[str, Any]] = []
    for subject in subjects:
        image = open_image(subject.path)
        asked = PictureQuestion(loaded, image, DESCRIBE, decoding)
        _, shown = run(console, asked, chosen, quiet=False, truth=subject.truth, timed=False)
        console.print(f"The picture {subject.path} shows: {', '.join(subject.truth.objects)}.", soft_wrap=True)
        print_table(console, shown)
        about = showing.about(model, decoding, asked.asker, subject.path.name, DESCRIBE)
        pages.append(_listed(shown.page(image, subject.path.name, about), subject.path.stem))
    return pages


def _listed(page: dict[str, Any], name: str) -> dict[str, Any]:
    """With what the list of several pictures says of each: who invents what."""
    answers = []
    for answer in page["answers"]:
        invented = dict.fromkeys(word["object"] for word in answer["words"] if word.get("present") is False)
        note = f"invents {', '.join(invented) or 'nothing'}"
        answers.append({**answer, "wrong": len(invented), "note": note})
    note = "; ".join(f"{answer['label']} {answer['note']}" for answer in answers)
    wrong = sum(answer["wrong"] for answer in answers)
    return {**page, "answers": answers, "id": name, "note": note, "wrong": wrong}


def _closing(averages: dict[str, Any] | None, mode: str) -> str:
    """What one picture is worth, and what decides."""
    told = "One picture proves nothing: other seeds (--seed 1) come out differently, and averages decide"
    if averages is None:
        return f"{told} (`seewhen eval chair` measures them; docs/evidence.md)."
    rows = (
        f"{row['method']}: {row['chair_i']:.1f} % invented ({row['chair_i_low']:.1f} to "
        f"{row['chair_i_high']:.1f}), {row['recall']:.1f} % found"
        for row in averages["rows"]
        if row["mode"] == mode
    )
    images = averages["rows"][0]["images"]
    return "\n".join([f"{told}. The model {averages['model']}, {mode}, on {images} images:", *rows])
