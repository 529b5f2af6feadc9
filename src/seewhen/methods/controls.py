"""The controls every comparison carries.

Published gains mix three things: the attention, the contrast, and the plausibility cut that comes with
the contrast and alone turns sampling almost into greedy decoding. So next to a method run `regular`,
`min-p` (the cut alone) and, where the method has both parts, each part by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from seewhen.decoding.method import Method, part_of
from seewhen.decoding.tilted_attention import Tilt
from seewhen.methods import method as make_method

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone


def with_controls(method: Method, backbone: Backbone) -> list[Method]:
    """The method and its controls, each once, the baseline first.

    A method whose parts cannot stand alone (its logit rule reads what its interventions left) or that
    has only one part gets no part controls: they would be broken, or equal to itself.
    """
    found = [make_method("regular"), make_method("min-p"), method]
    whole = method.parts(backbone)
    tilts = whole.interventions and all(isinstance(i, Tilt) for i in whole.interventions)
    if tilts and whole.branches and whole.rule is not None:
        found += [part_of(method, "attention"), part_of(method, "contrast")]
    by_fingerprint = {each.fingerprint: each for each in found}
    return list(by_fingerprint.values())
