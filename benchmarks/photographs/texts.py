"""What is said about a photograph of which only the set of objects is known: descriptions, questions, answers.

Everything comes from the objects alone, so nothing is said about colours, numbers or doings. Questions about what
is absent are drawn from statistics of the training photographs.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from photographs.words import Noun, asked, nouns, scene_of

DESCRIBE = (
    "Please describe this image in detail.",
    "Please describe this image in detail.",
    "Describe this image in detail.",
    "Please describe the image in detail",
    "Please help me describe the image in detail.",
    "What do you see in this photo? Tell me in a few sentences.",
    "Write a detailed description of the picture.",
    "Can you describe what is shown here?",
)
_LIST = (
    "What is in the image?",
    "Which objects can you see?",
    "List the things in this photo.",
    "What is shown here?",
)
_ASK = (
    ("Is there {} in the image?", 8),
    ("Is there {} in this picture?", 2),
    ("Is there {} in the photo?", 1),
    ("Does the image contain {}?", 1),
    ("Can you see {} in the image?", 1),
    ("Do you see {} here?", 1),
    ("Is {} visible in the image?", 1),
    ("Does this photo show {}?", 1),
)
_SHORT = (
    " Please answer this question with one word.",
    " Please answer yes or no.",
    " Please just answer yes or no.",
    "\nAnswer the question using a single word or phrase.",
)

_OPEN_ONE = (
    "The image shows {a}.",
    "The image features {a}.",
    "This photo shows {a}.",
    "In this picture, {a} can be seen.",
    "The main subject of the image is {a}.",
    "This is a photograph of {a}.",
)
_OPEN_TWO = (
    "The image shows {a} and {b}.",
    "The image features {a} together with {b}.",
    "In the image, there is {a}, along with {b}.",
    "This photo shows {a} next to {b}.",
    "In this picture, {a} and {b} can be seen.",
)
_SCENE = (
    "The setting suggests {s}.",
    "The scene reminds one of {s}.",
    "All of this points to {s}.",
    "It looks as if it were taken around {s}.",
)
_MORE_ONE = (
    "There is also {a}.",
    "{A} can also be seen.",
    "Nearby, there is {a}.",
    "{A} {is} visible as well.",
    "In addition, the image includes {a}.",
    "Close to it, there is {a}.",
    "Looking further, {a} {is} visible in the scene.",
)
_MORE_TWO = (
    "There is also {a} and {b}.",
    "{A} and {b} can also be seen.",
    "In addition, the image includes {a} and {b}.",
    "Besides that, {a} and {b} are visible in the scene.",
    "Further parts of the picture show {a} and {b}.",
)
_AGAIN = (
    "The {x} {is} easy to make out.",
    "The {x} {is} a clear part of the picture.",
    "The {x} and the {y} are both part of the same scene.",
    "The {x} {is} shown not far from the {y}.",
    "The {x} takes up a good part of the view.",
    "The {x} and the {y} give the picture its character.",
)
_END = (
    "These are the main things in the picture.",
    "Nothing else stands out.",
    "Overall, it looks like an everyday scene.",
    "Together they make up the whole scene.",
    "The overall impression is that of an ordinary moment.",
    "",
    "",
)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def describe(things: Sequence[str], rng: random.Random) -> str:
    """Several sentences that name all of `things`, the first ones first."""
    if not things:
        return rng.choice(
            ("The image shows a scene without any clear object.", "No particular object stands out here.")
        )
    named = [(thing, rng.choice(nouns(thing))) for thing in things]
    rest = [noun for _, noun in named]
    sentences = []
    if len(rest) > 1 and rng.random() < 0.6:
        sentences.append(_two(rng.choice(_OPEN_TWO), rest[0], rest[1]))
        rest = rest[2:]
    else:
        sentences.append(_one(rng.choice(_OPEN_ONE), rest[0]))
        rest = rest[1:]
    scene = scene_of(things)
    if scene is not None and rng.random() < 0.6:
        sentences.append(rng.choice(_SCENE).format(s=rng.choice(scene.names)))
    if rng.random() < 0.5:
        sentences.append(_again([noun for _, noun in named[:2]], rng))
    while rest:
        if len(rest) > 1 and rng.random() < 0.5:
            sentences.append(_two(rng.choice(_MORE_TWO), rest[0], rest[1]))
            rest = rest[2:]
        else:
            sentences.append(_one(rng.choice(_MORE_ONE), rest[0]))
            rest = rest[1:]
    if len(named) > 2 and rng.random() < 0.4:
        sentences.append(_again([noun for _, noun in rng.sample(named, 2)], rng))
    sentences.append(rng.choice(_END))
    return " ".join(sentence for sentence in sentences if sentence)


def _one(form: str, noun: Noun) -> str:
    is_ = "are" if noun.many else "is"
    text = form.format(a=noun.phrase, A=capital(noun.phrase), **{"is": is_})
    return text.replace("here is ", "here are ") if noun.many else text


def _two(form: str, first: Noun, second: Noun) -> str:
    return form.format(a=first.phrase, A=capital(first.phrase), b=second.phrase)


def _again(two: Sequence[Noun], rng: random.Random) -> str:
    form = rng.choice(_AGAIN if len(two) > 1 else _AGAIN[:2])
    first, second = two[0], two[-1]
    text = form.format(x=first.bare, y=second.bare, **{"is": "are" if first.many else "is"})
    return text.replace(" takes ", " take ") if first.many else text


def listing(things: Sequence[str], rng: random.Random) -> str:
    """One sentence with all of them."""
    if not things:
        return "I cannot make out any particular object."
    phrases = [rng.choice(nouns(thing)).phrase for thing in things]
    whole = phrases[0] if len(phrases) == 1 else ", ".join(phrases[:-1]) + " and " + phrases[-1]
    return capital(
        rng.choice(("there is {}.", "I can see {}.", "the image shows {}.", "{} can be seen.")).format(whole)
    )


@dataclass(frozen=True)
class Statistics:
    """How often things are photographed, and with what (training photographs only)."""

    categories: tuple[str, ...]
    frequency: np.ndarray  # (80,)
    together: np.ndarray  # (80, 80)

    def absent(self, shown: Collection[int], kind: str, rng: random.Random) -> int:
        """A thing that is not there: any, a popular one, or one that often comes along."""
        weights = np.ones(len(self.categories))
        if kind == "popular":
            weights = self.frequency.astype(float).copy()
        elif kind == "adversarial" and shown:
            share = self.together[list(shown)] / np.maximum(self.frequency[list(shown)][:, None], 1)
            weights = share.max(axis=0)
        weights[list(shown)] = 0
        if weights.sum() <= 0:
            weights = np.ones(len(self.categories))
            weights[list(shown)] = 0
        return rng.choices(range(len(weights)), weights.tolist())[0]


def statistics(categories: Sequence[str], shown: Iterable[Collection[int]]) -> Statistics:
    size = len(categories)
    together = np.zeros((size, size), dtype=np.int64)
    frequency = np.zeros(size, dtype=np.int64)
    for things in shown:
        row = list(things)
        frequency[row] += 1
        together[np.ix_(row, row)] += 1
    np.fill_diagonal(together, 0)
    return Statistics(tuple(categories), frequency, together)


Turn = tuple[str, str]  # what is asked, what is answered


def yes_no(thing: str, there: bool, rng: random.Random) -> Turn:
    """A question in POPE's words or others, with an answer that begins with yes or no."""
    name = asked(thing)
    form = rng.choices([f for f, _ in _ASK], [w for _, w in _ASK])[0]
    if rng.random() < 0.2:
        return form.format(name) + rng.choice(_SHORT), "Yes" if there else "No"
    if there:
        answer = rng.choice((f"Yes, there is {name} in the image.", f"Yes, there is {name}.", "Yes."))
    else:
        answer = rng.choice((f"No, there is no {thing} in the image.", f"No, there is no {thing}.", "No."))
    return form.format(name), answer


def questions(shown: Sequence[int], known: Statistics, count: int, rng: random.Random) -> list[Turn]:
    """`count` turns: as many yes as no in expectation; sometimes a list or a choice between two."""
    names = known.categories
    turns: list[Turn] = []
    for _ in range(count):
        roll = rng.random()
        kind = rng.choice(("random", "popular", "adversarial"))
        if roll < 0.08 and shown:
            turns.append((rng.choice(_LIST), listing([names[i] for i in shown], rng)))
        elif roll < 0.14 and shown:
            right, wrong = rng.choice(shown), known.absent(shown, kind, rng)
            pair = [asked(names[right]), asked(names[wrong])]
            rng.shuffle(pair)
            turns.append((f"Does the image show {pair[0]} or {pair[1]}?", f"It shows {asked(names[right])}."))
        elif shown and rng.random() < 0.5:
            turns.append(yes_no(names[rng.choice(shown)], True, rng))
        else:
            turns.append(yes_no(names[known.absent(shown, kind, rng)], False, rng))
    return turns


def in_order(shown: Sequence[int], scores: Mapping[int, float] | None, rng: random.Random) -> list[int]:
    """The things by how clearly the tower sees them, with some luck: what is plain is named first."""
    if scores is None:
        return rng.sample(list(shown), len(shown))
    return sorted(shown, key=lambda i: -(scores[i] + rng.gauss(0, 1)))
