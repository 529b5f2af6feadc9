"""What stands between the steps of a judged call: it looks at the tokens, asks aside, and may take tokens back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Ruling:
    """What a judge decides after a step, a flag per row."""

    settle: Sequence[bool]  # all tokens so far stay
    again: Sequence[bool] = ()  # all tokens since the last settled one are taken back
    ended: Sequence[bool] = ()  # the answer ends here, without what is taken back


@dataclass(frozen=True)
class Newest:
    """What a judge sees after a step."""

    tokens: Sequence[list[int]]  # of each row, the newest included
    logits: Tensor  # (rows, vocabulary): what the newest were chosen from, before logits processors
    running: Sequence[bool]  # rows that got a new token
    ended: Sequence[bool]  # rows whose newest token is their last by `generate`'s own rules; it can be taken back
    last: bool  # no further step will be made: nothing can be said again


class Judge:
    """Base class: sees everything, changes nothing. One judge serves one call."""

    def logits(self, tokens: Sequence[list[int]], logits: Tensor) -> Tensor:
        """The logits (rows, vocabulary) that logits processors get: their cuts go by what is left."""
        return logits

    def scores(self, tokens: Sequence[list[int]], scores: Tensor) -> Tensor:
        """The scores (rows, vocabulary) to choose the next tokens by, after all logits processors."""
        return scores

    def accepts(self, tokens: Sequence[list[int]], chosen: Sequence[int | None]) -> bool | None:
        """Whether `logits` and `scores` would let through what was chosen without them: a token, or none for rows
        that are over. None where that cannot be told, so that nothing may be chosen before they are asked."""
        asks = type(self).logits is not Judge.logits or type(self).scores is not Judge.scores
        return None if asks else True

    def ruling(self, newest: Newest) -> Ruling:
        """Whether the tokens stay."""
        return Ruling([True] * len(newest.tokens))

    def finish(self, tokens: Sequence[list[int]]) -> list[dict[str, Any]]:
        """What the trace tells of each row, whose final tokens these are."""
        return []
