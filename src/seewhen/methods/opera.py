"""OPERA: over-trust penalty and retrospection-allocation (Huang et al., CVPR 2024).

Idea: hallucinations follow "summary tokens", columns of the attention map on which all later tokens
lean. A beam search tries, for each beam, its `candidates` best tokens: one more forward pass gives each
candidate's attention row of the last layer (maximum over heads, normalised). With the rows of the
response so far, every response column j gets `phi_j = 1e-7 prod_{i >= j} (scale M[i, j])`, and a
candidate's logit becomes `z - weight max_j phi_j`. The first `warmup` tokens get a bonus instead, the
row's attention on the image. When the same column c stays the strongest in all beams more than
`threshold` times, the search goes back to the token after c and forbids what it chose there.

Source: the released code (shikiw/OPERA, MIT); written anew from its behaviour. The factor 1e-7, the
maximum over heads, the last layer only and the image bonus are in the code, not in the paper.
`reference_parity` also keeps four accidents of that code; without it (the default)
- column products stay in float32 (the code rounds them to float16, in which most are 0 and tie);
- tokens that are not candidates lie 999 below the worst candidate (the code sets them to -999, so a
  candidate with a penalty above about 1000 loses against every unlikely token of the vocabulary);
- a forbidden choice lies below all others (in the code it ties with the least likely token);
- going back forgets what was forbidden at later positions, whose prefix is a different one now.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from torch import Tensor

from seewhen.attention import AttentionCall
from seewhen.errors import InvalidMethod
from seewhen.interventions import Intervention
from seewhen.methods.base import Method, Parts, Preset

if TYPE_CHECKING:
    from seewhen.backbone import Backbone
    from seewhen.sequence import Prefill, Sequence, Step

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
class Watch(Intervention):
    """Keeps the attention row of the newest token in `layer`; changes nothing."""

    layer: int

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """The watched layer, to look at its attention."""
        return frozenset({self.layer})

    def begin(self, sequence: Sequence, prefill: Prefill) -> Watched:
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
class Opera(Method):
    """Beam search with an over-trust penalty and rollback."""

    name: ClassVar[str] = "opera"
    summary: ClassVar[str] = "beam search that avoids, and goes back behind, tokens all others lean on"
    source: ClassVar[str] = "Huang et al., CVPR 2024; code MIT"
    presets: ClassVar[Mapping[str, Preset]] = {
        "reference": Preset({"reference_parity": True}, "released code, argument defaults; num_beams=5"),
        "fast": Preset({"threshold": 25, "candidates": 1}, "README of the released code; num_beams=5"),
    }
    compiles: ClassVar[bool] = False
    beams_only: ClassVar[bool] = True
    needs_image: ClassVar[bool] = False

    scale: Annotated[float, "factor on attention weights before column products: larger trusts less"] = 50.0
    threshold: Annotated[int, "go back when one column has been the strongest more often than this"] = 15
    candidates: Annotated[int, "tokens tried for each beam"] = 5
    weight: Annotated[float, "of the penalty; 0: none"] = 1.0
    warmup: Annotated[int, "tokens at the start that get a bonus for looking at the image instead"] = 10
    earliest_rollback: Annotated[int, "tokens at the start behind which it never goes back"] = 10
    reference_parity: Annotated[bool, "keep four accidents of the released code"] = False

    def __post_init__(self) -> None:
        def require(condition: bool, message: str, hint: str) -> None:
            if not condition:
                raise InvalidMethod(f"opera: {message}", hint)

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

    def parts(self, backbone: Backbone) -> Parts:
        """A watcher of the last softmax layer, and a decoding loop."""
        from seewhen.methods.opera_search import generate

        watch = Watch(backbone.softmax_layers[-1])

        def loop(session: Any, stock: Any, *args: Any, **kwargs: Any) -> Any:
            return generate(self, watch, session, stock, *args, **kwargs)

        return Parts(interventions=(watch,), loop=loop)
