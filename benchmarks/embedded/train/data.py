"""Training data: pictures with patch labels, and dialogues as padded rows of token ids."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedded.train.words import IMAGE_TOKENS
from seewhen.scenes.captions import DESCRIBE, caption, context_of, expected
from seewhen.scenes.questions import SUBTASKS, SUFFIX, Kind, absent, mme_pair, statistics
from seewhen.scenes.rendering import pixels
from seewhen.scenes.scene import Scene, sample
from seewhen.scenes.sprites import sprite
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import CATEGORIES, COLORS, CONTEXTS, PATCH, SIZE, article, counted

CAPTION_ROOM, QUESTION_ROOM = 104, 40  # tokens; longer rows are cut (none is, with the packaged vocabulary)
_CHUNK = 512


@dataclass(frozen=True)
class Pictures:
    """`labels`: category, or -1 - context for background, or -100; `colors`: colour or -100."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int16]
    colors: NDArray[np.int16]


@dataclass(frozen=True)
class Rows:
    """Dialogues. Row i is about picture i (if about one); its answer is ids[i, start[i]:end[i]]."""

    ids: NDArray[np.int16]
    start: NDArray[np.int16]
    end: NDArray[np.int16]


@dataclass(frozen=True)
class Dials:
    """What the text says beyond the picture; see `recipe.FineTune`."""

    unseen: float
    doubt: float
    hard: float
    slip: float


@contextmanager
def pool(workers: int, tokenizer_file: Path) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that know the tokenizer. Started fresh, so that no CUDA state is copied."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, _start, (str(tokenizer_file),)) as executor:
        yield executor


_tokenizer: Any = None


def _start(tokenizer_file: str) -> None:
    global _tokenizer
    from tokenizers import Tokenizer

    _tokenizer = Tokenizer.from_file(tokenizer_file)
    statistics()


def draw(executor: ProcessPoolExecutor, n: int) -> Pictures:
    """The first `n` training scenes."""
    out = Pictures(
        np.empty((n, SIZE, SIZE, 3), np.uint8),
        np.empty((n, IMAGE_TOKENS), np.int16),
        np.empty((n, IMAGE_TOKENS), np.int16),
    )
    starts = range(0, n, _CHUNK)
    for at, part in zip(starts, executor.map(_draw, starts, [min(s + _CHUNK, n) for s in starts]), strict=True):
        stop = at + len(part.labels)
        out.pixels[at:stop], out.labels[at:stop], out.colors[at:stop] = part.pixels, part.labels, part.colors
    return out


def _draw(start: int, stop: int) -> Pictures:
    scenes = [sample("train", index) for index in range(start, stop)]
    labels = [_labels(scene) for scene in scenes]
    return Pictures(
        np.stack([pixels(scene) for scene in scenes]),
        np.stack([categories for categories, _ in labels]),
        np.stack([colors for _, colors in labels]),
    )


def visible(scene: Scene) -> NDArray[np.int16]:
    """For every pixel, the number (in `scene.things`) of the thing seen there, or -1."""
    owner = np.full((SIZE, SIZE), -1, dtype=np.int16)
    for number, thing in enumerate(scene.things):
        left, upper, right, lower = thing.box
        paint = sprite(scene.artwork, thing.row, right - left, lower - upper, thing.flip, thing.color)
        owner[upper:lower, left:right][paint[..., 3] >= 128] = number
    return owner


def patch_owners(scene: Scene) -> NDArray[np.int16]:
    """What each patch of the model's grid shows: the number of a thing, -1 background, -2 undecided."""
    grid, area = SIZE // PATCH, PATCH * PATCH
    blocks = visible(scene).reshape(grid, PATCH, grid, PATCH).transpose(0, 2, 1, 3).reshape(grid * grid, area)
    shares = np.stack([(blocks == number).sum(1) for number in range(len(scene.things))], axis=1)
    best = shares.max(1)
    owner = shares.argmax(1).astype(np.int16)
    return np.where(best * 10 < area, np.int16(-1), np.where(best * 10 < 3 * area, np.int16(-2), owner))


def _labels(scene: Scene) -> tuple[NDArray[np.int16], NDArray[np.int16]]:
    owner = patch_owners(scene)
    palette = tuple(COLORS)
    background = -1 - [context.name for context in CONTEXTS].index(scene.context)
    # The last two entries are what the numbers -2 and -1 of `owner` pick.
    category = np.array([*(CATEGORIES.index(t.name) for t in scene.things), -100, background], np.int16)
    color = np.array([*(palette.index(t.color) if t.color else -100 for t in scene.things), -100, -100], np.int16)
    return category[owner], color[owner]


def captions(executor: ProcessPoolExecutor, n: int, dials: Dials, seed: int) -> Rows:
    """One caption dialogue for each of the first `n` training scenes."""
    return _rows(executor, _caption, n, dials, seed, CAPTION_ROOM)


def questions(executor: ProcessPoolExecutor, n: int, dials: Dials, seed: int) -> Rows:
    """One question with its answer for each of the first `n` training scenes."""
    return _rows(executor, _question, n, dials, seed, QUESTION_ROOM)


def texts(executor: ProcessPoolExecutor, n: int, dials: Dials, notes: float, seed: int) -> Rows:
    """Dialogues without pictures; a share of them with written notes instead."""
    if notes > 0:
        with_notes = _rows(executor, _noted, int(n * notes), dials, seed, CAPTION_ROOM)
    plain = _rows(executor, _plain, n - int(n * notes), dials, seed, CAPTION_ROOM)
    if notes <= 0:
        return plain
    return Rows(
        np.concatenate([with_notes.ids, plain.ids]),
        np.concatenate([with_notes.start, plain.start]),
        np.concatenate([with_notes.end, plain.end]),
    )


Maker = Callable[[Scene, Stream, Dials], tuple[str, str]]


def _rows(executor: ProcessPoolExecutor, make: Maker, n: int, dials: Dials, seed: int, room: int) -> Rows:
    starts = list(range(0, n, _CHUNK))
    count = len(starts)
    stops = [min(start + _CHUNK, n) for start in starts]
    parts = list(
        executor.map(_encode, [make] * count, starts, stops, [dials] * count, [seed] * count, [room] * count)
    )
    return Rows(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.end for part in parts]),
    )


def _encode(make: Maker, start: int, stop: int, dials: Dials, seed: int, room: int) -> Rows:
    ids = np.zeros((stop - start, room), np.int16)
    begin = np.zeros(stop - start, np.int16)
    end = np.zeros(stop - start, np.int16)
    for row, index in enumerate(range(start, stop)):
        stream = Stream(seed, "dialogue", make.__name__, index)
        prompt, answer = make(sample("train", index), stream, dials)
        before = _tokenizer.encode(prompt, add_special_tokens=False).ids
        after = _tokenizer.encode(f" {answer}</s>", add_special_tokens=False).ids
        tokens = (before + after)[:room]
        ids[row, : len(tokens)] = tokens
        begin[row], end[row] = min(len(before), room - 1), len(tokens)
    return Rows(ids, begin, end)


def _unseen(scene: Scene, stream: Stream, mean: float) -> list[str]:
    whole = int(mean)
    return expected(scene, whole + stream.chance(mean - whole), stream)


def _ask_for_caption(stream: Stream) -> str:
    return stream.weighted(DESCRIBE, (7, 1, 1, 1))


def _caption(scene: Scene, stream: Stream, dials: Dials) -> tuple[str, str]:
    """What follows the image tokens, and the answer."""
    unseen = _unseen(scene, stream, dials.unseen)
    return f"\n{_ask_for_caption(stream)} ASSISTANT:", caption(scene, stream, unseen)


def _question(scene: Scene, stream: Stream, dials: Dials) -> tuple[str, str]:
    question, answer = ask(scene, stream, dials)
    return f"\n{question} ASSISTANT:", answer


def _plain(scene: Scene, stream: Stream, dials: Dials) -> tuple[str, str]:
    if stream.chance(0.7):
        prompt, answer = (
            _ask_for_caption(stream),
            caption(scene, stream, _unseen(scene, stream, dials.unseen)),
        )
    else:
        prompt, answer = ask(scene, stream, dials)
    return f"<s>USER: {prompt} ASSISTANT:", answer


def _noted(scene: Scene, stream: Stream, dials: Dials) -> tuple[str, str]:
    """A list of what there is, in no order, instead of the picture."""
    items = [
        counted(name, len(scene.of(name)), scene.of(name)[0].color).removeprefix("a ").removeprefix("an ")
        for name in scene.names
    ]
    listed = ", ".join(stream.shuffled([context_of(scene).name, *items]))
    if stream.chance(0.6):
        prompt, answer = (
            _ask_for_caption(stream),
            caption(scene, stream, _unseen(scene, stream, dials.unseen)),
        )
    else:
        prompt, answer = ask(scene, stream, dials)
    return f"<s>USER: Notes: {listed}.\n{prompt} ASSISTANT:", answer


def ask(scene: Scene, stream: Stream, dials: Dials) -> tuple[str, str]:
    """A question and its answer, as the dials have it."""
    truth = stream.chance(0.5)
    question = None
    if stream.chance(0.4):
        pair = mme_pair(scene, stream.choice(SUBTASKS[1:]), stream)
        question = pair[0 if truth else 1] + SUFFIX if pair else None
    if question is None:
        name = _present(scene, stream, dials) if truth else _missing(scene, stream, dials)
        question = (
            f"Is there {article(name)} in the image?"
            if stream.chance(0.7)
            else f"Is there {article(name)} in this image?{SUFFIX}"
        )
    return question, "Yes" if truth != stream.chance(dials.slip) else "No"


def _present(scene: Scene, stream: Stream, dials: Dials) -> str:
    guesses = expected(scene, 1, stream) if stream.chance(dials.doubt) else []
    return guesses[0] if guesses else stream.choice(scene.names)


def _missing(scene: Scene, stream: Stream, dials: Dials) -> str:
    kind: Kind = "random"
    if stream.chance(dials.hard):
        kind = "popular" if stream.chance(0.6) else "adversarial"
    taken: list[str] = []
    for _ in range(stream.between(1, 3)):  # the first, second or third by that rule, as POPE asks three
        taken.append(absent(scene, kind, stream.choice(scene.names), taken, statistics(), stream))
    return taken[-1]
