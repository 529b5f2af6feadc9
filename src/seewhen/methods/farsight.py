"""FarSight: Seeing Far and Clearly (Tang et al., CVPR 2025).

Idea: let attention dump its surplus on "registers" in the masked future, then forget it. A query row `i` sees
scores `-(j - i) a` in its future columns `j`; the softmax runs over past and future, the future weights are
set to zero. Registers only add mass `R_i` to the denominator, so the attention output becomes
`P V * Z / (Z + R_i) = P V * sigmoid(LSE_i - ln R_i)` with `R_i = sum_k exp(-k a)` over the registers to the
right of `i`: a closed form that works with any kernel and a key-value cache. The tests have the
definition itself and compare.

How many registers a row has depends on how long the text will get. `registers="exact"` counts the columns of
the present pass, as the definition does: exact for the prompt's pass, after which generated rows have
none. `registers="infinite"` sums to the end of time (for a = 0.8 ten columns make all but 0.03 % of it), for the
prompt's rows or for all; it also touches the newest row, which the definition never does.

Source: the paper (via a secondary text) and its released patch (MIT). Written from the formulas. The patch
adds its registers and then the causal mask, which deletes them: it equals ordinary attention bit for bit
(`reference_parity=True` does nothing, likewise). Layers without full softmax attention stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from torch import Tensor

from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.method import Method, Parts, Preset
from seewhen.decoding.sequence import Intervention, Step
from seewhen.errors import InvalidMethod
from seewhen.methods.parameters import check_words

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

Decay = Literal["paper", "released"]
_LARGEST_BLOCK = 2**25  # scores held at a time while log-sum-exps are computed


def register_rates(decay: Decay, sigma: float, heads: int, index: Tensor, length: Tensor) -> Tensor:
    """`a` of each head and query: (rows, heads, queries) for `index` (rows, queries) and `length` (rows, 1).

    The paper has one rate, sigma. The released patch lowers it by up to a quarter along the rows and adds
    head slopes, `sigma (1 - i / (4 (n - 1))) + 2^(-8 (h + 1) / H)`.
    """
    if decay == "paper":
        return torch.full_like(index, sigma, dtype=torch.float32)[:, None].expand(-1, heads, -1)
    progress = index / (length - 1).clamp(min=1)
    slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1, device=index.device) / heads)
    return (sigma * (1.0 - 0.25 * progress))[:, None] + slopes[None, :, None]


def log_register_mass(rate: Tensor, count: Tensor | None, ahead: Tensor | float = 0.0) -> Tensor:
    """ln R: registers at distances ahead + 1 ... ahead + count, or without end for `count` None."""
    mass = -rate * (ahead + 1.0) - torch.log1p(-torch.exp(-rate))
    return mass if count is None else mass + torch.log1p(-torch.exp(-rate * count))


def log_normalisers(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Log-sum-exp of every query row, (rows, heads, queries), and how many later columns each row sees.

    The second, (rows or 1, queries), is zero for causal attention and positive where image tokens see
    each other. Scores are made in blocks of queries, so that no full map is ever held.
    """
    rows, heads, queries, d = call.query.shape
    key = call.key.float().transpose(2, 3)
    columns = key.shape[-1]
    block = max(1, _LARGEST_BLOCK // (rows * heads * columns))
    position = torch.arange(columns, device=key.device)
    normalisers, ahead = [], []
    for start in range(0, queries, block):
        query = call.query[:, :, start : start + block].float()
        size = query.shape[2]
        scores = query.reshape(rows, heads // call.groups, call.groups * size, d) @ key * call.scaling
        scores = call.shaped(scores.view(rows, heads, size, columns), start)
        later = position[None] > torch.arange(start, start + size, device=key.device)[:, None]
        visible = _visible(call.mask, start, size, columns, ~later[None, None])
        normalisers.append(scores.masked_fill(~visible, -torch.inf).logsumexp(dim=-1))
        ahead.append((visible & later).sum(dim=-1)[:, 0])
    return call.with_sinks(torch.cat(normalisers, dim=-1)), torch.cat(ahead, dim=-1)


def _visible(mask: Tensor | None, start: int, size: int, columns: int, causal: Tensor) -> Tensor:
    """Which columns a block of queries sees, (rows or 1, 1, queries, columns), from any kind of mask."""
    if mask is None:
        return causal
    if mask.dim() == 2:  # flash kernels: padding only
        return causal & mask[:, None, None, :columns].bool()
    part = mask[:, :1, start : start + size, :columns]
    return part if part.dtype == torch.bool else part >= 0


@dataclass(frozen=True)
class Registers(Intervention):
    """Scales the attention output of every row by the share that its registers leave."""

    any_prompt_length: ClassVar[bool] = True

    sigma: float
    decay: Decay
    infinite: bool
    generated_too: bool

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """All layers with full softmax attention."""
        return frozenset(backbone.softmax_layers)

    def attend(self, step: Step, memory: None, call: AttentionCall) -> Tensor:
        """Scale the rows of the prompt, or the newest row."""
        if step.prefill is not None:
            return self._prompt(step, call)
        if not (self.infinite and self.generated_too):
            return call.output
        # The newest row is the last of its matrix: the far end of the released decay.
        end = torch.ones((1, 1), device=call.query.device)
        rate = register_rates(self.decay, self.sigma, call.query.shape[1], end, end + 1.0)
        share = torch.sigmoid(call.log_normaliser - log_register_mass(rate, None))
        return _scaled(step, call, share)

    def _prompt(self, step: Step, call: AttentionCall) -> Tensor:
        assert step.prefill is not None
        queries, device = call.query.shape[2], call.query.device
        if step.sequence.hidden is not None:  # branch rows have padding of their own
            padding = step.sequence.hidden.to(device)
        else:
            padding = step.prefill.padding.to(device)
        padded = padding.sum(dim=1, keepdim=True)
        position = torch.arange(queries, device=device)[None]
        rate = register_rates(
            self.decay, self.sigma, call.query.shape[1], (position - padded).clamp(min=0), queries - padded
        )
        normaliser, ahead = log_normalisers(call)
        count = None if self.infinite else (queries - 1 - position - ahead).clamp(min=0)[:, None]
        mass = log_register_mass(rate, count, ahead[:, None])
        share = torch.sigmoid(normaliser - mass).masked_fill(padding[:, None], 1.0)
        return _scaled(step, call, share)


def _scaled(step: Step, call: AttentionCall, share: Tensor) -> Tensor:
    """The output times `share` (rows, heads, queries) in the main rows; branch rows keep their bits."""
    rows, output = step.sequence.rows, call.output
    scaled = (output[:rows].float() * share[:rows].transpose(1, 2)[..., None]).to(output.dtype)
    return torch.cat([scaled, output[rows:]])


@dataclass(frozen=True)
class FarSight(Method):
    """Registers in the masked future take up surplus attention.

    `sigma` = log_1024(256) = 0.8. `decay="released"` is the released patch's rate with head slopes. `rows` only
    matters for infinite registers. `reference_parity` reproduces the released patch, which does nothing.
    """

    name: ClassVar[str] = "farsight"
    summary: ClassVar[str] = "registers in the masked future take up surplus attention"
    source: ClassVar[str] = "Tang et al., CVPR 2025; code MIT"
    endless: ClassVar[tuple[str, ...]] = ("sigma",)
    needs_image: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset({"decay": "paper", "registers": "exact"}, "paper, masked-future registers, sigma = 0.8"),
        "released": Preset({"decay": "released", "registers": "exact"}, "released patch, without its cancelling"),
        "infinite": Preset({"registers": "infinite", "rows": "all"}, "our approximation: registers without end"),
    }

    sigma: Annotated[float, "how fast registers fade with their distance; infinite: none"] = 0.8
    decay: Annotated[Decay, "one rate for all, or the released code's, by row and head"] = "paper"
    registers: Annotated[Literal["exact", "infinite"], "as many as the pass has columns, or no end"] = "exact"
    rows: Annotated[Literal["prompt", "all"], "infinite only: rows of the prompt, or all"] = "all"
    reference_parity: Annotated[bool, "as the released patch, which does nothing"] = False

    def __post_init__(self) -> None:
        if not self.sigma > 0:
            raise InvalidMethod(f"farsight: sigma={self.sigma}.", "Use a positive decay; larger is weaker.")
        check_words(self)

    def parts(self, backbone: Backbone) -> Parts:
        """One intervention on all softmax layers; none for the released patch."""
        if self.reference_parity or math.isinf(self.sigma):
            return Parts()
        infinite, everywhere = self.registers == "infinite", self.rows == "all"
        return Parts(interventions=(Registers(self.sigma, self.decay, infinite, everywhere),))
