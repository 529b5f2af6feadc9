"""What the study needs beside `confirm` itself: its ablations, and judges that tell more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.aside import Aside
from seewhen.decoding.judge import Judge, Newest, Ruling
from seewhen.decoding.method import Method, Parts
from seewhen.methods.confirm_judge import Sentences
from seewhen.methods.confirm_words import Words


def words_of(asks: Method, backbone: Backbone) -> Words:
    """The questions of a prepared `confirm`."""
    words: Words = asks.words  # type: ignore[attr-defined]
    return words.on(backbone.image_token_ids)


def odds_of_all(aside: Aside, words: Words, names: Sequence[str], row: int) -> Tensor:
    """Log-odds of every object for one row."""
    return words.answers.log_odds(aside.ask([row] * len(names), [words.question(name) for name in names]))


@dataclass(frozen=True)
class AllObjects(Method):
    """Asks about every object once the prompt is read, in the words of `asks`."""

    name: ClassVar[str] = "all-objects"
    names: tuple[str, ...]
    asks: Method

    def parts(self, backbone: Backbone) -> Parts:
        """A judge that asks at the end."""
        words, names = words_of(self.asks, backbone), self.names

        class Ask(Judge):
            def __init__(self, aside: Aside) -> None:
                self.aside = aside

            def finish(self, tokens: Sequence[list[int]]) -> list[dict[str, Any]]:
                return [{"odds": self._odds(row)} for row in range(len(tokens))]

            def _odds(self, row: int) -> list[float]:
                return [round(value, 4) for value in odds_of_all(self.aside, words, names, row).tolist()]

        return Parts(judge=Ask)


@dataclass(frozen=True)
class WordLevel(Method):
    """Nothing is taken back: a token that begins an object's word is as much less probable as a no is probable."""

    name: ClassVar[str] = "word-level"
    names: tuple[str, ...]
    asks: Method

    def parts(self, backbone: Backbone) -> Parts:
        """A judge that asks about all objects first and leans on the scores from then on."""
        words, names = words_of(self.asks, backbone), self.names

        class Lean(Judge):
            def __init__(self, aside: Aside) -> None:
                self.aside, self.added = aside, torch.zeros(0)

            def logits(self, tokens: Sequence[list[int]], logits: Tensor) -> Tensor:
                if not len(self.added):
                    self.added = self._leaning(logits)
                return torch.log_softmax(logits, dim=-1) + self.added

            def _leaning(self, logits: Tensor) -> Tensor:
                """(rows, vocabulary): of objects with the same first token the most probable one counts."""
                first = [(number, token) for number, name in enumerate(names) for token in begins(words, name)]
                objects, ids = torch.tensor(first, device=logits.device).T
                never = torch.full_like(logits, -torch.inf)
                for row in range(len(logits)):
                    sure = torch.nn.functional.logsigmoid(odds_of_all(self.aside, words, names, row))
                    never[row].scatter_reduce_(0, ids, sure[objects].to(logits.dtype), "amax")
                return torch.where(never.isinf(), 0.0, never)

        return Parts(judge=Lean)


def begins(words: Words, name: str) -> set[int]:
    """The tokens that begin one of an object's words in the middle of a sentence."""
    read = words.tokenizer
    length = len(read("a", add_special_tokens=False)["input_ids"])
    forms = words.forbidden.spellings(name)
    return {read(f"a {form}", add_special_tokens=False)["input_ids"][length] for form in forms}


@dataclass(frozen=True)
class TellsAll(Method):
    """`confirm` that tells everything it asked, also about objects that did not stay."""

    name: ClassVar[str] = "confirm"
    asks: Method

    def parts(self, backbone: Backbone) -> Parts:
        """Its judge, and more in what is told."""
        parts = self.asks.parts(backbone)
        make = parts.judge
        assert make is not None

        class All(Judge):
            def __init__(self, aside: Aside) -> None:
                judge = make(aside)
                assert isinstance(judge, Sentences)
                self.judge = judge

            def logits(self, tokens: Sequence[list[int]], logits: Tensor) -> Tensor:
                return self.judge.logits(tokens, logits)

            def scores(self, tokens: Sequence[list[int]], scores: Tensor) -> Tensor:
                return self.judge.scores(tokens, scores)

            def ruling(self, newest: Newest) -> Ruling:
                return self.judge.ruling(newest)

            def finish(self, tokens: Sequence[list[int]]) -> list[dict[str, Any]]:
                told = self.judge.finish(tokens)
                asked = (answer.asked.items() for answer in self.judge.answers)
                every = ([{"object": name, **one.told()} for name, one in row] for row in asked)
                return [{**row, "all": all_of_row} for row, all_of_row in zip(told, every, strict=True)]

        return Parts(judge=All, budget=parts.budget)
