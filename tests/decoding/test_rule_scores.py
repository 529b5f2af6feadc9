"""A rule that gives no usable scores is refused, in every way of decoding; no token is chosen by accident."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import seewhen
import tiny
from seewhen.errors import InvalidMethod
from seewhen.plugin import Judge, Logits, Method, Newest, Parts, Ruling


def _one_lost(main: Tensor) -> Tensor:
    main = main.clone()
    main[1, 3] = math.nan
    return main


RULES: dict[str, Callable[[Tensor], object]] = {
    "nan": lambda main: main * math.nan,
    "one_nan": _one_lost,
    "nothing_left": lambda main: torch.full_like(main, -math.inf),
    "one_row": lambda main: main[:1],
    "fewer_tokens": lambda main: main[:, :5],
    "more_rows": lambda main: torch.cat([main, main]),
    "integers": lambda main: main.long(),
    "yes_or_no": lambda main: main > 0,
    "array": lambda main: main.numpy(),
    "nothing": lambda main: None,
    "fine": lambda main: 2 * main,
    "half": lambda main: main.half(),
    "forced": lambda main: torch.where(torch.arange(main.shape[1]) == 7, math.inf, main),
}
LOST, FINE = ("nan", "one_nan", "nothing_left"), ("fine", "half", "forced")


@dataclass(frozen=True)
class Wrong(Method):
    name: ClassVar[str] = "wrong"
    kind: str = "nan"

    def parts(self, backbone: object) -> Parts:
        return Parts(rule=self.rule)

    def rule(self, logits: Logits) -> Tensor:
        return RULES[self.kind](logits.main)  # type: ignore[return-value]


class Narrow(Judge):
    def scores(self, tokens: Sequence[list[int]], scores: Tensor) -> Tensor:
        return scores[:, :3]

    def ruling(self, newest: Newest) -> Ruling:
        return Ruling(settle=[True] * len(newest.tokens), again=[False] * len(newest.tokens))


@dataclass(frozen=True)
class Narrowing(Method):
    name: ClassVar[str] = "narrowing"

    def parts(self, backbone: object) -> Parts:
        return Parts(judge=lambda aside: Narrow())


def _generate(method: Method, **options: object) -> Tensor:
    model = tiny.model("llava")
    with seewhen.attach(model, method):
        return model.generate(
            **tiny.inputs("llava", rows=2), **{"max_new_tokens": 3, "do_sample": False} | options
        )


@pytest.mark.parametrize("kind", [kind for kind in RULES if kind not in (*LOST, *FINE)])
def test_scores_of_another_form_are_refused(kind: str) -> None:
    with pytest.raises(InvalidMethod, match="wrong gave"):
        _generate(Wrong(kind))


@pytest.mark.parametrize("options", [{}, {"num_beams": 2}, {"cache_implementation": "static"}], ids=str)
@pytest.mark.parametrize("kind", LOST)
def test_scores_that_nothing_can_be_chosen_by_are_refused(kind: str, options: dict) -> None:
    with pytest.raises(InvalidMethod, match="wrong gave scores that nothing can be chosen by"):
        _generate(Wrong(kind), **options)


@pytest.mark.parametrize("kind", FINE)
def test_all_other_scores_decide(kind: str) -> None:
    new = _generate(Wrong(kind))[:, tiny.inputs("llava", rows=2)["input_ids"].shape[1] :]
    assert new.shape == (2, 3)
    assert bool((new == 7).all()) == (kind == "forced")


def test_a_judge_changes_scores_and_not_their_number() -> None:
    with pytest.raises(InvalidMethod, match="narrowing gave scores"):
        _generate(Narrowing())


def test_what_the_model_itself_cannot_choose_by_is_not_the_rules() -> None:
    """A model whose own logits are NaN says so by itself, as it does without a method."""
    model = tiny.model("llava")
    hook = model.lm_head.register_forward_hook(lambda module, args, output: output * math.nan)
    try:
        _generate(Wrong("fine"))
    finally:
        hook.remove()
