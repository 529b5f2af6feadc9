"""Makes POPE questions from any set of images with known objects, by POPE's own recipe.

Per image three objects that are there and three that are not, asked in turn; the absent ones are drawn
at random, or are the most frequent of the set, or those that most often accompany the object just asked.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.pope.questions import KINDS
from seewhen.errors import InvalidInput


def build_questions(
    objects: Mapping[str, Collection[str]],
    kind: str,
    *,
    name: str = "own",
    seed: int = 0,
    images: int = 500,
    per_image: int = 3,
) -> tuple[Sample, ...]:
    """2 x `per_image` questions for each of at most `images` images that have enough objects.

    The same seed asks for the same images and the same present objects in all three kinds, so that the
    kinds differ in the absent objects alone. The result depends on the content of `objects`, not its order.
    """
    if kind not in KINDS:
        raise InvalidInput(f"There is no POPE kind {kind!r}.", f"Use one of {', '.join(KINDS)}.")
    frequency = Counter(thing for things in objects.values() for thing in set(things))
    usable = sorted(
        image
        for image, things in objects.items()
        if len(set(things)) >= per_image and len(frequency) - len(set(things)) >= per_image
    )
    if not usable:
        raise InvalidInput(
            f"No image has {per_image} objects and lacks {per_image} others.",
            "POPE needs images with at least as many annotated objects as it asks for.",
        )
    together = _co_occurrence(objects) if kind == "adversarial" else {}
    chosen = sorted(random.Random(f"{seed}/images").sample(usable, min(images, len(usable))))
    split = f"{name}-{kind}"
    samples: list[Sample] = []
    for image in chosen:
        there = set(objects[image])
        asked = random.Random(f"{seed}/{image}/present").sample(sorted(there), per_image)
        absent = _absent(kind, asked, there, frequency, together, random.Random(f"{seed}/{image}/absent"))
        for present, missing in zip(asked, absent, strict=True):
            for thing, label in ((present, "yes"), (missing, "no")):
                number = len(samples) + 1
                samples.append(Sample(f"{split}/{number}", image, question(thing), label, split))
    return tuple(samples)


def question(thing: str) -> str:
    """POPE's template, with "an" before a vowel."""
    article = "an" if thing[:1].lower() in "aeiou" else "a"
    return f"Is there {article} {thing} in the image?"


def _co_occurrence(objects: Mapping[str, Collection[str]]) -> dict[str, Counter[str]]:
    together: dict[str, Counter[str]] = {}
    for things in objects.values():
        for thing in set(things):
            together.setdefault(thing, Counter()).update(set(things) - {thing})
    return together


def _absent(
    kind: str,
    asked: list[str],
    there: set[str],
    frequency: Counter[str],
    together: Mapping[str, Counter[str]],
    rng: random.Random,
) -> Iterator[str]:
    """One object for each one asked; none is in the image, none comes twice."""
    left = {thing for thing in frequency if thing not in there}
    for present in asked:
        if kind == "random":
            pick = rng.choice(sorted(left))
        elif kind == "popular":
            pick = min(left, key=lambda thing: (-frequency[thing], thing))
        else:
            company = together[present]
            # Frequency breaks ties between objects that never, or equally often, accompany it.
            pick = min(left, key=lambda thing: (-company[thing], -frequency[thing], thing))
        left.discard(pick)
        yield pick
