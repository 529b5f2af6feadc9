"""What a method is: a frozen dataclass of parameters that says which parts it is made of.

Parts: interventions inside the forward pass, extra rows (branches), and a rule that turns the logits
of all rows into scores. A method is data: it has a fingerprint, goes to JSON and back, and two methods
combine with `+` (the attention of the first with the contrast of the second).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self, get_type_hints

from torch import Tensor

from seewhen.branches import Branch
from seewhen.errors import InvalidMethod
from seewhen.interventions import Intervention

if TYPE_CHECKING:
    from seewhen.backbone import Backbone
    from seewhen.sequence import Sequence


@dataclass(frozen=True)
class Logits:
    """What a logit rule sees at one step: the last position's logits of the main rows and of each branch."""

    main: Tensor  # (rows, vocabulary), float32
    branches: tuple[Tensor, ...]
    sequence: Sequence
    scratch: tuple[dict[str, Any], ...]  # of the step's interventions, in order


Rule = Callable[[Logits], Tensor]


@dataclass(frozen=True)
class Parts:
    """A method taken apart for one backbone."""

    interventions: tuple[Intervention, ...] = ()
    branches: tuple[Branch, ...] = ()
    rule: Rule | None = None
    # Methods that need a decoding loop of their own (OPERA, SGRS) replace `generate`'s.
    loop: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Preset:
    """Named parameter values, each with the place they come from."""

    values: Mapping[str, Any]
    source: str
    sources: Mapping[str, str] = field(default_factory=dict)  # of single values, where they differ

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", MappingProxyType(dict(self.values)))


@dataclass(frozen=True)
class Method:
    """Base class of all methods. Fields are parameters (see `meanings`); `parts` resolves them for a model."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    source: ClassVar[str] = ""
    presets: ClassVar[Mapping[str, Preset]] = {}
    # Decoding modes; a loop or a rule that cannot do one says so here.
    beams: ClassVar[bool] = True
    batches: ClassVar[bool] = True
    compiles: ClassVar[bool] = True
    samples_only: ClassVar[bool] = False
    beams_only: ClassVar[bool] = False
    needs_image: ClassVar[bool] = True

    def parts(self, backbone: Backbone) -> Parts:
        """The interventions, branches and rule of this method on `backbone`."""
        return Parts()

    def prepare(self, tokenizer: Any) -> Self:
        """A copy that knows what only a tokenizer can tell (the tokens of a sentence); called by `generate`."""
        return self

    def generation_defaults(self) -> dict[str, Any]:
        """Arguments of `generate` that are part of the method (min-p, say); the caller's own win."""
        return {}

    def replace(self, **changes: Any) -> Self:
        """A copy with some parameters changed."""
        return dataclasses.replace(self, **_checked(type(self), changes))

    def parameters(self) -> dict[str, Any]:
        """All parameters with their values, JSON-ready."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready description from which `seewhen.method_from_json` makes the method again."""
        return {"method": self.name, "parameters": self.parameters()}

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with the method or any parameter."""
        text = json.dumps(self.to_json(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __add__(self, other: Method) -> Combined:
        return Combined(self, other)


def _checked(cls: type[Method], values: Mapping[str, Any]) -> dict[str, Any]:
    known = [f.name for f in dataclasses.fields(cls)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidMethod(
            f"{cls.name} has no parameter {', '.join(map(repr, unknown))}.",
            f"Its parameters are: {', '.join(known) or 'none'}.",
        )
    return dict(values)


def meanings(cls: type[Method]) -> dict[str, str]:
    """What each parameter means: the text beside its type, `strength: Annotated[float, "..."]`; "" without one."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: " ".join(getattr(hints[f.name], "__metadata__", ())) for f in dataclasses.fields(cls)}


def make(cls: type[Method], preset: str | None = None, **parameters: Any) -> Method:
    """Build a method from a preset (the class defaults if None) and parameters that override it."""
    values: dict[str, Any] = {}
    if preset is not None:
        if preset not in cls.presets:
            main = [name for name in cls.presets if "/" not in name]
            cells = len(cls.presets) - len(main)
            more = [f"and {cells} for a model and a data set (`seewhen methods {cls.name}`)"] if cells else []
            raise InvalidMethod(
                f"{cls.name} has no preset {preset!r}.", f"Its presets are: {', '.join(main + more) or 'none'}."
            )
        values.update(cls.presets[preset].values)
    values.update(_checked(cls, parameters))
    return cls(**values)


@dataclass(frozen=True)
class Combined(Method):
    """The interventions of one method with the branches and the logit rule of another: `cai + vcd`."""

    name: ClassVar[str] = "combined"
    attention: Method
    contrast: Method

    def __post_init__(self) -> None:
        for part in (self.attention, self.contrast):
            if part.beams_only or part.samples_only:
                raise InvalidMethod(
                    f"{part.name} has a decoding loop of its own and cannot be combined.", "Use it alone."
                )

    def parts(self, backbone: Backbone) -> Parts:
        """Interventions of both, branches and rule of the second."""
        first, second = self.attention.parts(backbone), self.contrast.parts(backbone)
        return Parts(second.interventions + first.interventions, second.branches, second.rule)

    def prepare(self, tokenizer: Any) -> Self:
        """Both prepared."""
        parts = (self.attention.prepare(tokenizer), self.contrast.prepare(tokenizer))
        return dataclasses.replace(self, attention=parts[0], contrast=parts[1])

    def generation_defaults(self) -> dict[str, Any]:
        """Those of both; the second wins."""
        return {**self.attention.generation_defaults(), **self.contrast.generation_defaults()}

    def parameters(self) -> dict[str, Any]:
        """Both methods, JSON-ready."""
        return {"attention": self.attention.to_json(), "contrast": self.contrast.to_json()}
