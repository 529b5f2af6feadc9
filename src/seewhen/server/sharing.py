"""Different methods in one batch: `regular` rows ride along with a method that only tilts attention.

Rows without an image pass through such a method unchanged, so to the method a riding row looks like one. Other
methods cannot share: each has its own extra rows, logit rule or layers, and one forward pass has one of each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from seewhen.decoding.method import Method, Parts
from seewhen.decoding.sequence import Intervention
from seewhen.decoding.tilted_attention import Tilt
from seewhen.methods.regular import Regular

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.prefill import Prefill
    from seewhen.decoding.sequence import CachedSequence


def rides(method: Method) -> bool:
    """Whether a method does nothing, so that its rows can be anybody's guests."""
    return type(method) is Regular


def hosts(method: Method, backbone: Backbone) -> bool:
    """Whether a method leaves rows without an image alone, at no cost for them."""
    parts = method.parts(backbone)
    tilts = bool(parts.interventions) and all(type(each) is Tilt for each in parts.interventions)
    plain = not parts.branches and parts.rule is None and parts.loop is None and parts.judge is None
    return tilts and plain and not method.generation_defaults()


@dataclass(frozen=True)
class Apart(Intervention):
    """Hides the image of the rows not in `own` from the interventions after it. The model itself still sees it."""

    own: tuple[bool, ...]

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> Any:
        """Before the others begin."""
        own = torch.tensor(self.own, device=sequence.image.valid.device)
        sequence.image = replace(sequence.image, valid=sequence.image.valid & own[:, None])


@dataclass(frozen=True)
class Shared(Method):
    """A hosting method on its own rows only. Goes by the host's name."""

    name: ClassVar[str] = "shared"
    host: Method
    own: tuple[bool, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.host.name)

    def parts(self, backbone: Backbone) -> Parts:
        """The host's, after the guests' images are hidden."""
        return Parts(interventions=(Apart(self.own), *self.host.parts(backbone).interventions))

    def parameters(self) -> dict[str, Any]:
        """The host's."""
        return self.host.parameters()


def together(methods: list[Method]) -> Method:
    """One method for a batch with these, row by row: all the same, or one host and its guests."""
    host = next((method for method in methods if not rides(method)), methods[0])
    own = tuple(method == host for method in methods)
    return host if all(own) else Shared(host, own)
