"""`diagnose`: how much of what a model invents does it know better? The ceiling of every method without help."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from seewhen.asking.asker import Asker
from seewhen.asking.check import MOST_OBJECTS, Checker
from seewhen.errors import InvalidInput
from seewhen.runs.captioning import Captions, SaidObject
from seewhen.runs.labelled import Labelled, check_enough, given
from seewhen.runs.progress import Progress
from seewhen.verdicts.ceiling import DOUBT, Array, Ceiling, Pairs, ceiling

if TYPE_CHECKING:
    from seewhen.backbones.prompts import Picture

_WAYS: Mapping[str, int | None] = {"greedy": None, "sampled": 0}  # the seed of each
DRAWS = 4  # further captions of each image, with seeds from 1 on


@dataclass(frozen=True)
class Diagnosis:
    """What a model knows better than it says, in greedy and in sampled captions."""

    images: int
    ways: Mapping[str, Ceiling]

    def to_json(self) -> dict[str, Any]:
        """JSON-ready; shares are of 1."""
        return {"images": self.images, **{way: asdict(found) for way, found in self.ways.items()}}

    def __repr__(self) -> str:
        shares = (f"{way} {100 * found.recoverable.value:.1f}" for way, found in self.ways.items())
        return f"Diagnosis({self.images} images, recoverable share: {', '.join(shares)} points)"


def diagnose(
    model: Any,
    processor: Any,
    images: int | str | Path | Sequence[tuple[Picture, Sequence[str]]],
    *,
    lexicon: str = "coco",
    ways: Sequence[str] = tuple(_WAYS),
    draws: int = DRAWS,
    tokens: int = 64,
    batch: int = 8,
) -> Diagnosis:
    """How much of what a model invents it knows better: the recoverable share, with all that it is made of.

    Every object of the lexicon is asked about on every image, and further captions are sampled: what a model says
    every time it believes more than what it says once.

    Args:
        model: A vision-language model of transformers, as `seewhen.load` gives it.
        processor: Its processor.
        images: A number of drawn scenes, a folder that `seewhen eval chair` takes, a file of JSON lines with image
            and objects, or pairs of picture and objects.
        lexicon: Which words are objects: `"coco"`, or a file with one object per line.
        ways: How captions are decoded.
        draws: How many further captions of each image are sampled.
        tokens: The longest caption.
        batch: Captions written together.

    Returns:
        The diagnosis; `to_json()` gives all of it.

    Examples:
        >>> print(seewhen.diagnose(model, processor, 200).to_json())
    """
    return diagnosed(Captions(Asker((model, processor)), lexicon, tokens, batch), given(images), ways, draws)


def diagnosed(
    captions: Captions, images: Sequence[Labelled], ways: Sequence[str] = tuple(_WAYS), draws: int = DRAWS
) -> Diagnosis:
    """As `diagnose`, of pictures that are labelled already."""
    check_enough(images)
    checker = Checker(captions.asker, captions.lexicon, verdict="asking")
    objects = checker.words.lexicon.objects
    if len(objects) > MOST_OBJECTS:
        raise InvalidInput(
            f"The lexicon has {len(objects):,} objects, and each is asked about on every image.",
            f"Use coco, or a file with at most {MOST_OBJECTS}.",
        )
    images = [image.named_by(checker.words.lexicon) for image in images]
    with Progress("captions and questions", len(images) * (len(ways) + draws + 1)) as progress:
        said = {way: captions.said(images, _WAYS[way], progress.advance) for way in ways}
        others = [captions.named(images, seed, progress.advance) for seed in range(1, draws + 1)]
        odds = np.empty((len(images), len(objects)))
        for row, image in enumerate(images):
            odds[row] = list(checker.odds(image.open(), objects).values())
            progress.advance(1)
    elsewhere = np.zeros(odds.shape)
    for named in others:
        elsewhere += np.array([[name in caption for name in objects] for caption in named]) / draws
    found = {way: ceiling(_pairs(images, objects, odds, said[way], elsewhere)) for way in ways}
    return Diagnosis(len(images), found)


def _pairs(
    images: Sequence[Labelled], objects: Sequence[str], odds: Array, said: Sequence[SaidObject], elsewhere: Array
) -> Pairs:
    """A row for each image and object; doubt where the object was said."""
    rows = {image.name: number for number, image in enumerate(images)}
    columns = {name: number for number, name in enumerate(objects)}
    mentioned = np.zeros(odds.shape, bool)
    doubt = {name: np.full(odds.shape, np.nan) for name in DOUBT}
    for each in said:
        place = rows[each.image], columns[each.object]
        mentioned[place] = True
        for name in DOUBT:
            doubt[name][place] = getattr(each.signals, name)
    true = np.array([[name in image.objects for name in objects] for image in images])
    image = np.repeat(np.arange(len(images)), len(objects))
    flat = {name: values.ravel() for name, values in doubt.items()}
    return Pairs.of(image, true.ravel(), mentioned.ravel(), odds.ravel(), elsewhere.ravel(), **flat)
