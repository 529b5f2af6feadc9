"""PAI: Pay Attention to Image (Liu et al., ECCV 2024).

Idea: give every image token more weight for the newest token, `S <- S + alpha |S|` before the softmax
in all heads of the layers from `start_layer` on, and contrast with a text-only row,
`gamma lp - (gamma - 1) lp'` on log-probabilities with the plausibility cut of 0.1. `gamma=1` is the
attention edit alone, `alpha=0` the contrast alone.

Source: the paper and its released code (MIT). Written from the formulas. With the contrast on, the
released code skips the edit for the first token (its flag is still set during the prefill), so that
its answers to yes/no questions are decided by the contrast alone; `reference_parity=True` does the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from torch import Tensor

from seewhen.decoding.branches import TextOnly
from seewhen.decoding.method import Logits, Method, Parts, Preset
from seewhen.decoding.tilted_attention import Relevance, Tilt
from seewhen.equations.contrast import check_contrast, log_prob_contrast
from seewhen.errors import InvalidMethod
from seewhen.methods.parameters import Plausibility

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone

_PAPER = "values of the paper as reported by third parties; layers as in the released code"


@dataclass(frozen=True)
class PAI(Method):
    """Pay Attention to Image. The class defaults are the paper's for LLaVA-1.5."""

    name: ClassVar[str] = "pai"
    summary: ClassVar[str] = "more attention to all of the image, and a text-only contrast"
    source: ClassVar[str] = "Liu et al., ECCV 2024; code MIT"
    joins: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper:llava-1.5": Preset({}, _PAPER),
        "paper:shikra": Preset({"alpha": 0.6}, _PAPER),
        "paper:minigpt-4": Preset({"alpha": 0.2}, _PAPER),
        "reference": Preset(
            {"alpha": 0.2, "gamma": 1.1, "reference_parity": True}, "released code, commands of the README"
        ),
        "reference:defaults": Preset(
            {"alpha": 0.2, "gamma": 2.0, "reference_parity": True}, "released code, argument defaults"
        ),
    }

    alpha: Annotated[float, "how much attention to every image token is raised: 0 leaves it as it is"] = 0.5
    start_layer: Annotated[int, "first layer that is edited"] = 2
    end_layer: Annotated[int | None, "layer before which editing ends; none: the last is edited too"] = None
    gamma: Annotated[float, "weight of the row with the image against the text-only row; 1: no contrast"] = 1.1
    plausibility: Plausibility = 0.1
    reference_parity: Annotated[bool, "as the released code: with contrast, no edit for the first token"] = False

    def __post_init__(self) -> None:
        check_contrast(self.name, self.alpha, self.plausibility)
        if self.gamma < 1:
            raise InvalidMethod(f"pai: gamma={self.gamma} is below 1.", "1 means no contrast.")
        if self.start_layer < 0 or (self.end_layer is not None and self.end_layer <= self.start_layer):
            raise InvalidMethod(
                f"pai: there is no layer from {self.start_layer} to before {self.end_layer}.",
                "Layers count from 0; end_layer is exclusive, None means to the last.",
            )

    @property
    def contrasts(self) -> bool:
        """Whether there is a text-only row."""
        return self.gamma != 1.0

    def parts(self, backbone: Backbone) -> Parts:
        """An ungated tilt for alpha > 0, a text-only row for gamma > 1."""
        return Parts(
            interventions=(self._tilt(backbone),) if self.alpha else (),
            branches=(TextOnly(),) if self.contrasts else (),
            rule=self._rule if self.contrasts else None,
        )

    def _tilt(self, backbone: Backbone) -> Tilt:
        end = backbone.num_layers if self.end_layer is None else self.end_layer
        layers = tuple(la for la in backbone.softmax_layers if self.start_layer <= la < end)
        if not layers:
            raise InvalidMethod(
                f"pai: layers {self.start_layer} to before {end} hold no softmax attention in this model, "
                f"which has it in layers {list(backbone.softmax_layers)}.",
                "Give a smaller start_layer.",
            )
        return Tilt(
            layers=layers,
            relevance=Relevance(form="uniform"),
            gate=None,
            form="score",
            strength=self.alpha,
            edit_prefill=not (self.reference_parity and self.contrasts),
        )

    def _rule(self, logits: Logits) -> Tensor:
        return log_prob_contrast(logits.main, logits.branches[0], self.gamma, self.plausibility)
