"""Regular decoding, and the min-p control that every contrastive method has to beat.

`regular` changes nothing. `min-p` keeps only tokens with `p >= 0.1 max p`, which is the plausibility
cut of the contrastive methods without their contrast: at temperature 1 it turns sampling almost into
greedy decoding, so that much of a published gain over "regular sampling" is this cut alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from torch import Tensor

from seewhen.decoding.method import Logits, Method, Parts
from seewhen.equations.contrast import cut
from seewhen.errors import InvalidMethod

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone


@dataclass(frozen=True)
class Regular(Method):
    """The model as it is."""

    name: ClassVar[str] = "regular"
    summary: ClassVar[str] = "the model as it is: the baseline"
    source: ClassVar[str] = "transformers' own decoding"
    joins: ClassVar[bool] = True
    needs_image: ClassVar[bool] = False


@dataclass(frozen=True)
class MinP(Method):
    """Regular decoding with the plausibility cut alone: `p >= min_p * max p`."""

    name: ClassVar[str] = "min-p"
    summary: ClassVar[str] = "the plausibility cut alone: the control for contrastive methods"
    source: ClassVar[str] = "the cut of Li et al. 2023 (contrastive decoding); min-p sampling"
    joins: ClassVar[bool] = True
    needs_image: ClassVar[bool] = False

    min_p: Annotated[float, "tokens less likely than this share of the likeliest are never chosen"] = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.min_p <= 1.0:
            raise InvalidMethod(f"min_p={self.min_p} is not a share.", "Choose it between 0 and 1.")

    def parts(self, backbone: Backbone) -> Parts:
        """A logit rule and nothing else."""
        return Parts(rule=self._rule) if self.min_p else Parts()

    def _rule(self, logits: Logits) -> Tensor:
        return cut(logits.main, logits.main, self.min_p)
