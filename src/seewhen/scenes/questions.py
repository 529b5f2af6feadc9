"""Questions with exact answers, in the benchmarks' own record shapes.

POPE: {question_id, image, text, label}. MME: {image, question, answer}, a yes and a no question per picture.
CHAIR: the set of objects per picture. "Popular" and "adversarial" follow the statistics of the training
world, because that is where a model's expectations come from, also when it is asked about shifted scenes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, TypedDict

from seewhen.errors import InvalidInput
from seewhen.scenes.scene import Scene, dataset
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import CATEGORIES, COLORS, NUMBERS, SINGLE, article, plural

Kind = Literal["random", "popular", "adversarial"]
KINDS: tuple[Kind, ...] = ("random", "popular", "adversarial")
Subtask = Literal["existence", "count", "position", "color"]
SUBTASKS: tuple[Subtask, ...] = ("existence", "count", "position", "color")
SUFFIX = " Please answer yes or no."


class PopeQuestion(TypedDict):
    question_id: int
    image: str
    text: str
    label: str


class MmeQuestion(TypedDict):
    image: str
    question: str
    answer: str


@dataclass(frozen=True)
class Statistics:
    """How often each category is seen, and which are seen with it, most frequent first."""

    popular: tuple[str, ...]
    companions: dict[str, tuple[str, ...]]


@cache
def statistics(n: int = 3000) -> Statistics:
    """Of the first `n` training scenes."""
    seen: Counter[str] = Counter()
    together: dict[str, Counter[str]] = {name: Counter() for name in CATEGORIES}
    for scene in dataset("train", n):
        seen.update(scene.names)
        for name in scene.names:
            together[name].update(other for other in scene.names if other != name)

    def ranked(counts: Counter[str]) -> tuple[str, ...]:
        return tuple(sorted(CATEGORIES, key=lambda name: (-counts[name], name)))

    return Statistics(ranked(seen), {name: ranked(counts) for name, counts in together.items()})


def absent(
    scene: Scene, kind: Kind, positive: str, taken: Sequence[str], stats: Statistics, stream: Stream
) -> str:
    """An object that is not in the scene, by POPE's three rules; never one already asked about."""
    order: Sequence[str]
    if kind == "random":
        order = stream.shuffled(CATEGORIES)
    elif kind == "popular":
        order = stats.popular
    else:
        order = stats.companions[positive]
    present = scene.names
    return next(name for name in order if name not in present and name not in taken)


def pope(scenes: Sequence[Scene], kind: Kind, *, per_scene: int = 3, seed: int = 0) -> list[PopeQuestion]:
    """`per_scene` yes and as many no questions, alternating, for every scene with that many categories."""
    if kind not in KINDS:
        raise InvalidInput(f"There is no POPE setting {kind!r}.", f"Choose one of: {', '.join(KINDS)}.")
    stats = statistics()
    out: list[PopeQuestion] = []
    for scene in scenes:
        if len(scene.names) < per_scene:
            continue
        stream = Stream(seed, "pope", kind, scene.split, scene.seed, scene.index)
        asked: list[str] = []
        for positive in stream.shuffled(scene.names)[:per_scene]:
            negative = absent(scene, kind, positive, asked, stats, stream)
            asked += [positive, negative]
            for name, label in ((positive, "yes"), (negative, "no")):
                text = f"Is there {article(name)} in the image?"
                out.append({"question_id": len(out) + 1, "image": scene.image, "text": text, "label": label})
    return out


def chair(scenes: Sequence[Scene]) -> dict[str, list[str]]:
    """Picture -> the categories in it."""
    return {scene.image: list(scene.names) for scene in scenes}


def mme(scenes: Sequence[Scene], subtask: Subtask, *, seed: int = 0) -> list[MmeQuestion]:
    """A yes and a no question about every scene that allows the subtask."""
    if subtask not in SUBTASKS:
        raise InvalidInput(f"There is no subtask {subtask!r}.", f"Choose one of: {', '.join(SUBTASKS)}.")
    out: list[MmeQuestion] = []
    for scene in scenes:
        pair = mme_pair(scene, subtask, Stream(seed, "mme", subtask, scene.split, scene.seed, scene.index))
        if pair is not None:
            for question, answer in zip(pair, ("Yes", "No"), strict=True):
                out.append({"image": scene.image, "question": question + SUFFIX, "answer": answer})
    return out


def mme_pair(scene: Scene, subtask: Subtask, stream: Stream) -> tuple[str, str] | None:
    """The question whose answer is yes and the one whose answer is no, or None if the scene has no case."""
    if subtask == "existence":
        other = stream.choice([name for name in CATEGORIES if name not in scene.names])
        yes, no = (f"Is there {article(name)} in this image?" for name in (stream.choice(scene.names), other))
        return yes, no
    if subtask == "count":
        countable = [name for name in scene.names if name not in SINGLE]
        if not countable:
            return None
        # Several of a kind are rarer than one: ask about them when there are some.
        several = [name for name in countable if len(scene.of(name)) > 1]
        name = stream.choice(several if several and stream.chance(0.7) else countable)
        count = len(scene.of(name))
        wrong = stream.choice([n for n in (1, 2, 3, 4) if n != count])
        return _how_many(name, count), _how_many(name, wrong)
    if subtask == "position":
        return _side(scene, stream)
    colored = [name for name in scene.names if scene.of(name)[0].color is not None]
    if not colored:
        return None
    name = stream.choice(colored)
    color = scene.of(name)[0].color
    wrong_color = stream.choice([c for c in COLORS if c != color])
    yes, no = (f"Is the {name} {c}?" if len(scene.of(name)) == 1 else f"Are the {plural(name)} {c}?"
               for c in (color, wrong_color))  # fmt: skip
    return yes, no


def _how_many(name: str, count: int) -> str:
    if count == 1:
        return f"Is there only one {name} in this image?"
    return f"Are there {NUMBERS[count]} {plural(name)} in this image?"


def _side(scene: Scene, stream: Stream) -> tuple[str, str] | None:
    """Two things, one of a kind each, clearly apart from left to right."""
    single = [name for name in scene.names if len(scene.of(name)) == 1]
    pairs = [(a, b) for a in single for b in single if scene.of(b)[0].center[0] - scene.of(a)[0].center[0] >= 32]
    if not pairs:
        return None
    left, right = stream.choice(pairs)
    if stream.chance(0.5):
        subject, anchor, side, wrong = left, right, "left", "right"
    else:
        subject, anchor, side, wrong = right, left, "right", "left"
    yes, no = (f"Is the {subject} on the {s} side of the {anchor}?" for s in (side, wrong))
    return yes, no
