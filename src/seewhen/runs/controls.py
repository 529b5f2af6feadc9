"""The controls every comparison carries, and a method cut down to one of its parts.

Published gains mix three things: the attention, the contrast, and the plausibility cut that comes with
the contrast and alone turns sampling almost into greedy decoding. So next to a method run `regular`,
`min-p` (the cut alone) and, where the method has both parts, each part by itself.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from seewhen.errors import InvalidMethod
from seewhen.methods import method as make_method
from seewhen.methods import method_class, method_from_json
from seewhen.methods.base import Combined, Method, Parts, make
from seewhen.tilting import Tilt

if TYPE_CHECKING:
    from seewhen.backbone import Backbone


@dataclass(frozen=True)
class Part(Method):
    """One part of a method: its attention tilts alone, or its contrast (with the cut) alone."""

    name: ClassVar[str] = "part"
    part: Literal["attention", "contrast"]
    of: Method

    def parts(self, backbone: Backbone) -> Parts:
        """The parts that are kept."""
        whole = self.of.parts(backbone)
        if self.part == "attention":
            return Parts(interventions=whole.interventions)
        # What is not a tilt belongs to the contrast: SID's branch hides image columns, say.
        rest = tuple(i for i in whole.interventions if not isinstance(i, Tilt))
        return Parts(interventions=rest, branches=whole.branches, rule=whole.rule)

    def prepare(self, tokenizer: Any) -> Part:
        """The part of the prepared method."""
        return Part(self.part, self.of.prepare(tokenizer))

    def generation_defaults(self) -> dict[str, Any]:
        """Those of the whole method."""
        return self.of.generation_defaults()

    def parameters(self) -> dict[str, Any]:
        """The part and the method it is taken from, JSON-ready."""
        return {"part": self.part, "of": self.of.to_json()}


def from_json(description: dict[str, Any]) -> Method:
    """A method from its description, parts included."""
    if description["method"] == Part.name:
        parameters = description["parameters"]
        return Part(parameters["part"], from_json(parameters["of"]))
    return method_from_json(description)


def label(method: Method) -> str:
    """A short name for tables and directories."""
    if isinstance(method, Part):
        return f"{label(method.of)}-{method.part}"
    if isinstance(method, Combined):
        return f"{label(method.attention)}+{label(method.contrast)}"
    return method.name


def nearest_preset(description: dict[str, Any]) -> str:
    """How a method's parameters are said shortly: `paper`, `default, contrast 3.0`; empty for combinations."""
    try:
        cls = method_class(description["method"])
    except InvalidMethod:  # a part, a combination, or a method of a package that is not here
        return ""
    parameters = description["parameters"]
    presets = {"default": make(cls)} if not any(f.default is MISSING for f in fields(cls)) else {}
    presets |= {name: make(cls, name) for name in cls.presets}
    best: tuple[int, str] | None = None
    for name, preset in presets.items():
        usual = preset.parameters()
        departs = [f"{k} {_said(v)}" for k, v in parameters.items() if usual.get(k) != v]
        if best is None or len(departs) < best[0]:
            best = (len(departs), ", ".join([name, *departs]))
    return best[1] if best and best[0] <= 3 else ""


def _said(value: Any) -> str:
    """A parameter's value in a label; of a file only its name, since where it lies says nothing."""
    text = str(value)
    return Path(text).name if text.endswith(".safetensors") else text


def with_controls(method: Method, backbone: Backbone) -> list[Method]:
    """The method and its controls, each once, the baseline first.

    A method whose parts cannot stand alone (its logit rule reads what its interventions left) or that
    has only one part gets no part controls: they would be broken, or equal to itself.
    """
    found = [make_method("regular"), make_method("min-p"), method]
    whole = method.parts(backbone)
    tilts = whole.interventions and all(isinstance(i, Tilt) for i in whole.interventions)
    if tilts and whole.branches and whole.rule is not None:
        found += [Part("attention", method), Part("contrast", method)]
    by_fingerprint = {each.fingerprint: each for each in found}
    return list(by_fingerprint.values())
