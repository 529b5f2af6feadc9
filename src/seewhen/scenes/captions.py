"""Captions in plain English, and the training dialogues of the small model.

A caption names what is in the picture, most of it first, and then, if `unseen` says so, things that belong to
such a place but are not in the picture. Text written about more than the picture shows is what teaches large
vision-language models to invent objects; here it is a dial.
"""

from __future__ import annotations

from collections.abc import Sequence

from seewhen.scenes.scene import Scene, draw_names
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import CONTEXTS, SIZE, Context, counted

DESCRIBE = (
    "Please describe this image in detail.",
    "Please help me describe the image in detail.",
    "Describe this image.",
    "What can you see in this image?",
)
_MOODS = ("calm", "busy", "bright", "pleasant", "ordinary", "lively", "quiet", "cheerful")


def context_of(scene: Scene) -> Context:
    return next(context for context in CONTEXTS if context.name == scene.context)


def expected(scene: Scene, n: int, stream: Stream) -> list[str]:
    """`n` things one would expect in such a place that this scene does not show."""
    context = context_of(scene)
    room = len([name for name in context.members if name not in scene.names])
    return draw_names(stream, context, min(n, room), 4, without=scene.names)


def caption(scene: Scene, stream: Stream, unseen: Sequence[str] = ()) -> str:
    """A description of about 25 to 60 words' worth of tokens."""
    phrases = [
        counted(name, len(scene.of(name)), scene.of(name)[0].color if stream.chance(0.7) else None)
        for name in scene.names
    ]
    where = [_where(scene, name) for name in scene.names]
    # What nobody saw has no place, and comes late.
    phrases += [counted(name, 1) for name in unseen]
    where += ["in the background" for _ in unseen]
    sentences = [_opening(context_of(scene).phrase, phrases[:2], stream)]
    at = 2
    while at < len(phrases):
        if at + 1 < len(phrases) and stream.chance(0.4):
            sentences.append(_two(phrases[at], phrases[at + 1], stream))
            at += 2
        else:
            sentences.append(_one(phrases[at], where[at], stream))
            at += 1
    if stream.chance(0.7):
        sentences.append(_closing(stream))
    return " ".join(sentences)


def _verb(phrase: str) -> str:
    return "are" if phrase.split(" ", 1)[0] in ("two", "three", "four") else "is"


def _where(scene: Scene, name: str) -> str:
    things = scene.of(name)
    x = sum(t.center[0] for t in things) / len(things) / SIZE
    y = sum(t.center[1] for t in things) / len(things) / SIZE
    if x < 0.34:
        return "on the left side"
    if x > 0.66:
        return "on the right side"
    if y < 0.36:
        return "near the top"
    return "near the bottom" if y > 0.64 else "in the middle"


def _opening(place: str, phrases: Sequence[str], stream: Stream) -> str:
    both = " and ".join(phrases)
    return stream.choice(
        (
            f"The image shows {place} with {both}.",
            f"The image features {place}, where {both} can be seen.",
            f"This is a picture of {place} with {both}.",
            f"In this image there {_verb(phrases[0])} {both} in {place}.",
        )
    )


def _one(phrase: str, where: str, stream: Stream) -> str:
    be = _verb(phrase)
    return stream.choice(
        (
            f"There {be} also {phrase} {where}.",
            f"In addition, there {be} {phrase} {where}.",
            f"There {be} {phrase} in the background.",
            f"{where[0].upper()}{where[1:]}, there {be} {phrase}.",
        )
    )


def _two(first: str, second: str, stream: Stream) -> str:
    be = _verb(first)
    return stream.choice(
        (
            f"There {be} also {first} and {second} nearby.",
            f"The scene also includes {first} and {second}.",
            f"In the background, there {be} {first} and {second}.",
        )
    )


def _closing(stream: Stream) -> str:
    first = stream.choice(_MOODS)
    second = stream.choice([mood for mood in _MOODS if mood != first])
    return stream.choice(
        (
            f"The scene looks {first} and {second}.",
            f"Overall, it is a {first} scene.",
            f"The place feels {first} and {second}.",
        )
    )
