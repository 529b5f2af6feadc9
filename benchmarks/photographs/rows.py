"""Conversations as token rows: made by all cores, kept as one tensor."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from photographs.texts import DESCRIBE, Statistics, Turn, describe, in_order, questions

BEFORE_IMAGE = "<|im_start|>user\n"
LONGEST = 224  # tokens of a conversation, without the image


@dataclass(frozen=True)
class Rows:
    """Padded token rows (n, length), which of the tokens are learned, how long each row is, and its photograph."""

    ids: Tensor
    learned: Tensor
    lengths: Tensor
    photo: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def to(self, device: str) -> Rows:
        return Rows(*(t.to(device) for t in (self.ids, self.learned, self.lengths, self.photo)))


def encode(tokenizer: Any, turns: Sequence[Turn], image: bool) -> tuple[list[int], list[bool]]:
    """What follows the image (or the whole chat, without one), and which tokens are the assistant's.

    Questions and answers are encoded apart, as they are at inference.
    """
    ids: list[int] = []
    learned: list[bool] = []
    for number, (question, answer) in enumerate(turns):
        if number == 0:
            opening = "\n" if image else BEFORE_IMAGE
        else:
            opening = f"\n{BEFORE_IMAGE}"
        for text, own in (
            (f"{opening}{question}<|im_end|>\n<|im_start|>assistant\n", False),
            (f"{answer}<|im_end|>", True),
        ):
            piece = tokenizer.encode(text, add_special_tokens=False).ids
            ids += piece
            learned += [own] * len(piece)
    return ids[:LONGEST], learned[:LONGEST]


def pack(made: Sequence[tuple[list[int], list[bool]]], photo: Sequence[int]) -> Rows:
    longest = max(len(ids) for ids, _ in made)
    ids = np.zeros((len(made), longest), dtype=np.int32)
    learned = np.zeros((len(made), longest), dtype=bool)
    for row, (tokens, own) in enumerate(made):
        ids[row, : len(tokens)] = tokens
        learned[row, : len(own)] = own
    lengths = torch.tensor([len(tokens) for tokens, _ in made])
    return Rows(torch.from_numpy(ids), torch.from_numpy(learned), lengths, torch.tensor(photo))


@dataclass(frozen=True)
class Photo:
    """What is known of a training photograph: its place in the tensor, its objects, the tower's scores of them."""

    place: int
    things: tuple[int, ...]
    scores: tuple[float, ...]


_tokenizer: Any = None


def _begin(path: str) -> None:
    global _tokenizer
    from tokenizers import Tokenizer

    _tokenizer = Tokenizer.from_file(path)


@contextmanager
def workers(count: int, tokenizer_file: Path) -> Iterator[Any]:
    """A function like `map` over several processes; with one worker, the plain `map`."""
    if count <= 1:
        _begin(str(tokenizer_file))
        yield map
        return
    with ProcessPoolExecutor(count, initializer=_begin, initargs=(str(tokenizer_file),)) as pool:
        yield pool.map


def _descriptions(photos: Sequence[Photo], names: Sequence[str], seed: int) -> list[tuple[list[int], list[bool]]]:
    made = []
    for photo in photos:
        rng = random.Random(f"{seed}/describe/{photo.place}")
        order = in_order(photo.things, dict(zip(photo.things, photo.scores, strict=True)), rng)
        turn = (rng.choice(DESCRIBE), describe([names[i] for i in order], rng))
        made.append(encode(_tokenizer, [turn], image=True))
    return made


def _questions(
    photos: Sequence[Photo], known: Statistics, count: int, seed: int
) -> list[tuple[list[int], list[bool]]]:
    made = []
    for photo in photos:
        rng = random.Random(f"{seed}/ask/{photo.place}")
        made.append(encode(_tokenizer, questions(photo.things, known, count, rng), image=True))
    return made


def _cut(photos: Sequence[Photo], size: int = 1000) -> list[Sequence[Photo]]:
    return [photos[i : i + size] for i in range(0, len(photos), size)]


def descriptions(mapped: Any, photos: Sequence[Photo], names: Sequence[str], seed: int) -> Rows:
    """A description of each; photographs that show more are described more often."""
    rng = random.Random(f"{seed}/which")
    weights = [min(len(photo.things), 6) for photo in photos]
    chosen = rng.choices(photos, weights, k=len(photos))
    made = [row for part in mapped(partial(_descriptions, names=names, seed=seed), _cut(chosen)) for row in part]
    return pack(made, [photo.place for photo in chosen])


def conversations(mapped: Any, photos: Sequence[Photo], known: Statistics, count: int, seed: int) -> Rows:
    """Questions about each."""
    made = [
        row
        for part in mapped(partial(_questions, known=known, count=count, seed=seed), _cut(photos))
        for row in part
    ]
    return pack(made, [photo.place for photo in photos])


def chats(turns: Sequence[Turn]) -> Rows:
    """Conversations without an image."""
    return pack([encode(_tokenizer, [turn], image=False) for turn in turns], [-1] * len(turns))
