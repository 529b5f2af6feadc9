"""OPERA's over-trust: the attention it watches, the columns that all later tokens lean on, and its parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.sequence import Intervention
from seewhen.methods.parameters import required

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.prefill import Prefill
    from seewhen.decoding.sequence import CachedSequence, Step

_LOG_FACTOR = math.log(1e-7)
_HUGE = 1e30
_LARGEST = math.log(1e4)  # no penalty is larger: it only has to decide between candidates


@dataclass
class Watched:
    """What the search reads: the newest attention row of each row, and the prompt's geometry."""

    padding: Tensor  # (rows, prompt), bool
    last_position: Tensor  # (rows,) or (axes, rows): position of the last prompt token
    row: Tensor | None = None  # (rows, columns): maximum over heads, normalised
    choices: list[Any] = field(default_factory=list)  # every choice of the search, in order


@dataclass(frozen=True)
class AttentionWatch(Intervention):
    """Keeps the attention row of the newest token in `layer`; changes nothing."""

    layer: int

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """The watched layer, to look at its attention."""
        return frozenset({self.layer})

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> Watched:
        """Note the padding and the position of the last prompt token."""
        return Watched(prefill.padding, prefill.position_ids[..., -1])

    def attend(self, step: Step, memory: Watched, call: AttentionCall) -> Tensor:
        """Maximum over heads of the newest row; the prompt's own rows are never needed."""
        if step.prefill is None:
            row = torch.exp(call.scores - call.log_normaliser).amax(dim=1)
            memory.row = row / row.sum(dim=-1, keepdim=True)
        return call.output


def column_logs(before: Tensor, rows: Tensor, scale: float) -> Tensor:
    """Logarithms of the column products after one more row.

    `before` (..., n) are those of n response columns, `rows` (..., n + 1) the newest token's attention on
    them and on itself.
    """
    return torch.nn.functional.pad(before, (0, 1)) + torch.log(scale * rows)


def strongest_column(logs: Tensor, rounded: bool, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """`phi` of the strongest column and which it is, over the last dimension; `rounded` as in the code.

    `valid` says which columns count, where not all do.
    """
    if valid is None:
        valid = torch.ones_like(logs, dtype=torch.bool)
    if rounded:
        phi = torch.exp(logs + _LOG_FACTOR).half().float()
        value, column = phi.masked_fill(~valid, -1.0).max(dim=-1)
        return value, column
    logs = (logs + _LOG_FACTOR).clamp(min=-_HUGE)  # a column no one looks at is still one that counts
    value, column = logs.masked_fill(~valid, -torch.inf).max(dim=-1)
    return torch.exp(value.clamp(max=_LARGEST)), column


@dataclass(frozen=True)
class OverTrust:
    """The parameters of the penalty and of the rollback."""

    scale: Annotated[float, "factor on attention weights before column products: larger trusts less"] = 50.0
    threshold: Annotated[int, "go back when one column has been the strongest more often than this"] = 15
    candidates: Annotated[int, "tokens tried for each beam"] = 5
    weight: Annotated[float, "of the penalty; 0: none"] = 1.0
    warmup: Annotated[int, "tokens at the start that get a bonus for looking at the image instead"] = 10
    earliest_rollback: Annotated[int, "tokens at the start behind which it never goes back"] = 10
    reference_parity: Annotated[bool, "keep four accidents of the released code"] = False

    def __post_init__(self) -> None:
        require = partial(required, "opera")
        require(self.candidates >= 1, f"candidates={self.candidates}.", "Each beam needs at least one.")
        require(self.scale > 0, f"scale={self.scale} is not positive.", "The published value is 50.")
        require(self.threshold >= 1, f"threshold={self.threshold}.", "The published value is 15.")
        require(self.weight >= 0, f"weight={self.weight} is negative.", "0 switches the penalty off.")
        require(self.warmup >= 0, f"warmup={self.warmup} is negative.", "The published value is 10.")
        require(
            self.earliest_rollback >= 0,
            f"earliest_rollback={self.earliest_rollback} is negative.",
            "It is a position in the response; the published value is 10.",
        )
