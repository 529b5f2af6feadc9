"""`seewhen diagnose`: how much of what a model invents does it know better, and what is it like otherwise?"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seewhen.cli.options import LoadingFlags
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.backbones.loading import Loaded
    from seewhen.runs.captioning import Captions
    from seewhen.runs.diagnosis import Diagnosis
    from seewhen.runs.diagnostics import Diagnostics
    from seewhen.runs.labelled import Labelled
    from seewhen.runs.ladder import Prediction
    from seewhen.verdicts.ceiling import Ceiling, Estimate, Separation

_LOOKED, _ASKED = 60, 24  # pictures for the diagnostics, and those of them with yes/no questions
_NARROW = 0.1  # an interval of the recoverable share that says something
_SIGNALS = {
    "odds": "the odds when asked",
    "logprob": "the word's log-probability",
    "entropy": "the entropy where it begins",
    "position": "its position (a control)",
    "elsewhere": "said in its other captions",
    "together": "all together",
}


@dataclass(frozen=True)
class MaterialFlags:
    """Labelled pictures, and how they are described."""

    scenes: Annotated[int, typer.Option("--scenes", min=5, help="How many drawn scenes, without --data.")] = 200
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder as for `eval chair`, or JSON lines with image and objects."),
    ] = None
    image_list: Annotated[
        str | None, typer.Option("--image-list", help="Of a folder: a packaged list of images, or a file of ids.")
    ] = None
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Only the first N pictures.")] = None
    lexicon: Annotated[
        str, typer.Option("--lexicon", help="Which words are objects: coco, or a file, one object per line.")
    ] = "coco"
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1, help="Of a caption.")] = 64
    batch: Annotated[int, typer.Option("--batch", min=1, help="Captions written together.")] = 8

    def images(self) -> list[Labelled]:
        """The pictures with the objects they show."""
        from seewhen.runs.labelled import drawn, labelled

        if self.data is None:
            return drawn(self.scenes)[: self.limit]
        return labelled(self.data, self.image_list, self.limit)

    def captions(self, loaded: Loaded) -> Captions:
        """How the pictures are described."""
        from seewhen.asking.asker import Asker
        from seewhen.runs.captioning import Captions

        return Captions(Asker(loaded), self.lexicon, self.max_new_tokens, self.batch)


def diagnose(
    model: Annotated[str, typer.Argument(help="Hub id, checkpoint directory, photo or packaged.")],
    photos: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PHOTOS...", help="Your own, without labels: folders, files, patterns in quotes, or lists."
        ),
    ] = None,
    *,
    decoding: Annotated[
        Literal["both", "greedy", "sampled"], typer.Option("--decoding", help="Sampled: at temperature 1.")
    ] = "both",
    draws: Annotated[
        int, typer.Option("--draws", min=0, help="Further captions of each picture: what does it say again?")
    ] = 4,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    material: MaterialFlags,
    loading: LoadingFlags,
) -> None:
    """Measure the recoverable share: what a model invents, and what it would invent if it said only what it knows.

    A ceiling for every method that decodes with the model alone. Pictures must be labelled: drawn scenes, COCO,
    your own. Then what the model is like: how far its answers depend on the image, where it looks, what a tilt
    would do, and what methods did to small models like it. For that photographs need no labels.

    seewhen diagnose packaged --scenes 100

    seewhen diagnose photo photos/

    seewhen diagnose photo --data coco --image-list photographs.txt --limit 100

    seewhen diagnose llava-hf/llava-1.5-7b-hf --data labelled.jsonl --json
    """
    from seewhen.backbones.loading import check_name
    from seewhen.runs.labelled import check_enough

    check_name(model, loading.revision)
    images = _own(photos, material) if photos else material.images()
    if not photos:
        check_enough(images)

    from seewhen.asking.opening import open_model
    from seewhen.runs.diagnosis import diagnosed
    from seewhen.runs.diagnostics_wording import foretold
    from seewhen.runs.ladder import ladder, predictions, scalars

    ways = ("greedy", "sampled") if decoding == "both" else (decoding,)
    loaded = open_model(model, loading.loading())
    found = None if photos else diagnosed(material.captions(loaded), images, ways, draws)
    looked = _looked(loaded, images, material, labels=not photos)
    like = scalars(looked, found)
    every = {rung.name: rung for rung in ladder()}
    rungs = [rung for name, rung in every.items() if name != model]  # the packaged model is one: not from itself
    foreseen = [*predictions(like, rungs), *predictions(like, rungs, "f1")]
    if as_json:
        about = {
            "model": model,
            "lexicon": material.lexicon,
            "max_new_tokens": material.max_new_tokens,
            "draws": draws,
        }
        plain = _plain(found, looked, foreseen)
        typer.echo(json.dumps({"schema": "seewhen/diagnosis/1", **about, **plain}, indent=2))
    else:
        typer.echo("\n".join([*_words(found, looked), *foretold(foreseen, rungs, like, every.get(model))]))


def _own(photos: list[str], material: MaterialFlags) -> list[Labelled]:
    """Photographs of which nobody says what they show."""
    from seewhen.runs.folders import photos_of
    from seewhen.runs.labelled import Labelled

    if material.data is not None or material.image_list is not None:
        raise InvalidInput(
            "PHOTOS have no labels, and --data names some that do.", "Give photographs, or --data: not both."
        )
    found = photos_of(photos, material.limit)
    return [Labelled(photo.name, str(photo.path), frozenset()) for photo in found]


def _looked(loaded: Loaded, images: list[Labelled], material: MaterialFlags, labels: bool) -> Diagnostics:
    from seewhen.runs.diagnostics import diagnostics
    from seewhen.runs.progress import Progress

    some = images[:_LOOKED]
    with Progress("what the model is like", len(some) + labels * min(len(some), _ASKED)) as progress:
        return diagnostics(
            *loaded,
            some,
            labels=labels,
            lexicon=material.lexicon,
            tokens=material.max_new_tokens,
            batch=material.batch,
            asked=_ASKED,
            advance=progress.advance,
        )


def _plain(found: Diagnosis | None, looked: Diagnostics, foreseen: list[Prediction]) -> dict[str, Any]:
    ceilings = {} if found is None else found.to_json()
    return {
        **ceilings,
        "diagnostics": looked.to_json(),
        "predictions": [dataclasses.asdict(each) for each in foreseen],
    }


def _words(found: Diagnosis | None, looked: Diagnostics) -> Iterator[str]:
    from seewhen.runs import diagnostics_wording as wording

    if found is None:
        yield "recoverable share: it takes labelled pictures (drawn scenes, --data) and is not measured here"
    else:
        yield from told(found)
    yield from wording.told(looked)


def told(found: Diagnosis) -> Iterator[str]:
    """The diagnosis in words; intervals are of 95 %, over images."""
    for way, one in found.ways.items():
        yield from _first(way, found.images, one)
        yield from _rest(one)


def _first(way: str, images: int, found: Ceiling) -> Iterator[str]:
    yield f"{way} captions of {images} images: {found.said} objects said"
    yield f"  recoverable                       {_share(found.recoverable, 'points')}"
    yield f"  invented now                      {_share(found.invented_now)}"
    yield f"  at equal recall, by all it knows  {_share(found.invented_at_same_recall)}"
    yield f"  {verdict_in_words(found)}"


def verdict_in_words(found: Ceiling) -> str:
    """What the recoverable share means; with few images it may mean nothing."""
    gain = found.recoverable
    if gain.low > 0:
        return (
            f"It knows better than it says: at equal recall {100 * gain.value:.1f} points of inventions could go."
        )
    if gain.high < 0:
        return "Its captions are better than its answers: asking would take back too much."
    if gain.high - gain.low < _NARROW:
        return "It says what it believes: without outside help a method has nothing to take back."
    return "So few images do not show whether it knows better than it says."


def _rest(found: Ceiling) -> Iterator[str]:
    yield "  inventions denied, when this share of true objects is kept:"
    for keep, share in found.denied.items():
        yield f"    {100 * keep:.0f} %  {_share(share)}"
    yield "  how well each signal tells invented from true (AUROC; within quarters of the position):"
    for name, separation in found.signals.items():
        yield f"    {_SIGNALS[name]:<28}  {_auroc(separation)}"
    yield "  predicted that it is there, and so (calibration of all together):"
    for part in found.calibration:
        yield f"    {100 * part.predicted:3.0f} %  {_share(part.there)}  of {part.count}"


def _share(share: Estimate, unit: str = "%") -> str:
    return f"{100 * share.value:5.1f} {unit} ({100 * share.low:.1f} to {100 * share.high:.1f})"


def _auroc(found: Separation) -> str:
    whole = f"{found.auroc.value:.3f} ({found.auroc.low:.3f} to {found.auroc.high:.3f})"
    return whole if found.within_position is None else f"{whole}; {found.within_position.value:.3f}"
