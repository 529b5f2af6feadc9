"""M3ID: Multi-Modal Mutual Information Decoding (Favero et al., CVPR 2024).

Idea: the longer the text, the more the model forgets the image; so the text-only row is subtracted ever
more strongly, `lp + ((1 - g) / g) (lp - lp')` with `g = exp(-k (t + t0))` at token `t`, but only where
the model is unsure: `max p < gate_alpha`.

Source: the paper, whose code was never released; the formulas are as others report them. The variant
that other methods' code uses as a baseline (preset `baseline`) has no gate, starts at `t0 = 0`, where
its weight is zero, and adds a plausibility cut: it never changes the first token, which decides yes/no
questions, and in long answers the contrast takes over (weight 12 at token 128).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor

from seewhen.decoding.branches import TextOnly
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.equations.contrast import check_contrast, cut
from seewhen.errors import InvalidMethod
from seewhen.methods.parameters import Plausibility

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone


@dataclass(frozen=True)
class M3ID(Method):
    """Multi-Modal Mutual Information Decoding. The class defaults are the paper's for captions."""

    name: ClassVar[str] = "m3id"
    summary: ClassVar[str] = "a text-only contrast that grows with the length of the answer"
    source: ClassVar[str] = "Favero et al., CVPR 2024; no code released"
    joins: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset({}, "the paper's values for captions, as reported by third parties"),
        "paper:pope": Preset({"t0": 10.0}, "the paper: t0 about the length of the question"),
        "baseline": Preset(
            {"gate_alpha": None, "apc_beta": 0.1}, "re-implementations in the released code of ONLY and DeGF"
        ),
    }

    k: Annotated[float, "how fast the contrast grows with each token; 0: no contrast"] = 0.02
    t0: Annotated[float, "tokens by which it is ahead at the first one"] = 0.0
    gate_alpha: Annotated[
        float | None, "contrast only where the likeliest token is less likely than this; none: always"
    ] = 0.3
    apc_beta: Plausibility = None

    def __post_init__(self) -> None:
        check_contrast(self.name, 0.0, self.apc_beta)
        if self.k < 0 or self.t0 < 0:
            raise InvalidMethod(f"m3id: k={self.k}, t0={self.t0}.", "Neither can be negative.")
        if self.gate_alpha is not None and not 0 < self.gate_alpha <= 1:
            raise InvalidMethod(
                f"m3id: gate_alpha={self.gate_alpha} is not a probability.",
                "Choose it in (0, 1]; None contrasts at every token.",
            )

    def parts(self, backbone: Backbone) -> Parts:
        """A text-only row; nothing at all for k = 0, where the weight is always zero."""
        return Parts(branches=(TextOnly(),), rule=self._rule) if self.k else Parts()

    def _rule(self, logits: Logits) -> Tensor:
        main, other = (torch.log_softmax(z.float(), dim=-1) for z in (logits.main, logits.branches[0]))
        weight = self.weight(logits.sequence.recorder.number.to(main.device))
        contrast = weight * (main - other)
        if self.gate_alpha is not None:
            unsure = main.amax(dim=-1, keepdim=True) < math.log(self.gate_alpha)
            contrast = torch.where(unsure, contrast, 0.0)
        return cut(main + contrast, main, self.apc_beta)

    def weight(self, token: Tensor) -> Tensor:
        """`(1 - g) / g` at token number `token` (from 0)."""
        return torch.expm1(self.k * (token + self.t0))
