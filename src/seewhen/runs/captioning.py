"""Captions of labelled pictures, and what a model shows of each object it says: the material of verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import LogitsProcessorList

from seewhen.asking.asker import Asker, Batch, Question
from seewhen.asking.options import DESCRIBE
from seewhen.decoding.method import Method
from seewhen.methods import method as make_method
from seewhen.runs.labelled import Labelled
from seewhen.runs.noise import HashedNoise, stream_seed
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.verdict import WRITTEN, Signals

Advance = Callable[[int], None]


@dataclass(frozen=True)
class SaidObject:
    """The first mention of an object in a caption: what was known of it, and whether it is there."""

    image: str
    object: str
    signals: Signals
    there: bool


@dataclass(frozen=True)
class Captions:
    """How captions are made. `confirm` marks what it would deny and changes no word."""

    asker: Asker
    lexicon: str = "coco"
    tokens: int = 64
    batch: int = 8

    def said(
        self, images: Sequence[Labelled], seed: int | None, advance: Advance = lambda _: None, drafts: int = 0
    ) -> list[SaidObject]:
        """Every object of every caption, first mentions only; greedy without a seed, else temperature 1."""
        marking = make_method("confirm", "mark", lexicon=self.lexicon, verdict="asking", drafts=drafts)
        found: list[SaidObject] = []
        for some, batches in self.described(marking, images, seed, True):
            told = [row for batch in batches if batch.trace is not None for row in batch.trace.told]
            for image, row in zip(some, told, strict=True):
                found += _first_mentions(image, row["verdicts"])
            advance(len(some))
        return found

    def named(
        self, images: Sequence[Labelled], seed: int, advance: Advance = lambda _: None
    ) -> list[frozenset[str]]:
        """The objects of each caption, sampled, and nobody asked about them."""
        lexicon = lexicon_named(self.lexicon)
        found: list[frozenset[str]] = []
        for some, batches in self.described("regular", images, seed, False):
            texts = [answer.text for batch in batches for answer in batch.answers]
            found += [frozenset(mention.object for mention in read_mentions(text, lexicon)) for text in texts]
            advance(len(some))
        return found

    def described(
        self, method: str | Method, images: Sequence[Labelled], seed: int | None = None, traced: bool = True
    ) -> Iterator[tuple[Sequence[Labelled], list[Batch]]]:
        """Some of the images at a time, with their captions."""
        prompt = self.asker.prompt(DESCRIBE)
        with self.asker.attached(method, fast="off") as attached:
            for start in range(0, len(images), self.batch):
                some = images[start : start + self.batch]
                questions = [Question(prompt, (image.open(),), image.name) for image in some]
                yield some, attached.answer(questions, partial(self._options, seed), traced)

    def _options(self, seed: int | None, questions: Sequence[Question]) -> dict[str, Any]:
        options: dict[str, Any] = {"max_new_tokens": self.tokens, "do_sample": False, "num_beams": 1}
        if seed is None:
            return options
        noise = HashedNoise([stream_seed(seed, question.name) for question in questions])
        return options | {"logits_processor": LogitsProcessorList([noise])}


def _first_mentions(image: Labelled, verdicts: Sequence[dict[str, Any]]) -> Iterator[SaidObject]:
    seen: set[str] = set()
    for told in verdicts:
        if told["object"] not in seen:
            seen.add(told["object"])
            signals = Signals(told["odds"], *(told.get(name) for name in WRITTEN[1:]))
            yield SaidObject(image.name, told["object"], signals, told["object"] in image.objects)
