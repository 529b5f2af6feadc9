"""What a method is: a frozen dataclass of parameters that says which parts it is made of.

Parts: interventions inside the forward pass, extra rows (branches), and a rule that turns the logits
of all rows into scores. A method is data: it has a fingerprint, goes to JSON and back, and two methods
combine with `+`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_type_hints

from torch import Tensor

from seewhen.decoding.branches import Branch
from seewhen.decoding.naming import COMBINED, PART
from seewhen.decoding.parameter_values import fitted
from seewhen.decoding.sequence import Intervention
from seewhen.decoding.tilted_attention import Tilt
from seewhen.errors import InvalidMethod
from seewhen.registry import no_parameter, no_preset

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.aside import Aside
    from seewhen.decoding.judge import Judge
    from seewhen.decoding.sequence import CachedSequence


@dataclass(frozen=True)
class Logits:
    """What a logit rule sees at one step: the last position's logits of the main rows and of each branch."""

    main: Tensor  # (rows, vocabulary), float32
    branches: tuple[Tensor, ...]
    sequence: CachedSequence
    scratch: tuple[dict[str, Any], ...]  # of the step's interventions, in order


Rule = Callable[[Logits], Tensor]


@dataclass(frozen=True)
class Parts:
    """A method taken apart for one backbone."""

    interventions: tuple[Intervention, ...] = ()
    branches: tuple[Branch, ...] = ()
    rule: Rule | None = None
    # Looks at the tokens between steps, asks the model aside, and may take tokens back: made for each call.
    judge: Callable[[Aside], Judge] | None = None
    budget: float = 1.0  # steps per token of the longest answer that taking back may cost
    # OPERA's beam search replaces `generate`'s loop.
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
    # Whether its answers may join and leave a running batch: nothing in its rule goes from row to row, nor from
    # step to step but through `Recorder.number`.
    joins: ClassVar[bool] = False
    # Whether it judges what was said and takes tokens back: then an answer depends on how long it may become.
    judges: ClassVar[bool] = False
    samples_only: ClassVar[bool] = False
    beams_only: ClassVar[bool] = False
    needs_image: ClassVar[bool] = True
    options: ClassVar[tuple[str, ...]] = ()  # arguments of `generate` that are the method's own
    endless: ClassVar[tuple[str, ...]] = ()  # parameters that may be infinite: a threshold that nothing reaches

    def parts(self, backbone: Backbone) -> Parts:
        """The interventions, branches and rule of this method on `backbone`."""
        return Parts()

    def prepare(self, tokenizer: Any) -> Self:
        """A copy that knows what only a tokenizer can tell (the tokens of a sentence); called by `generate`."""
        return self

    def generation_defaults(self) -> dict[str, Any]:
        """Arguments of `generate` that are part of the method (min-p, say); the caller's own win."""
        return {}

    def in_words(self) -> str:
        """What it does, in a few words."""
        return self.summary or self.name

    def replace(self, /, **changes: Any) -> Self:
        """A copy with some parameters changed."""
        return dataclasses.replace(self, **_checked(type(self), changes))

    def parameters(self) -> dict[str, Any]:
        """All parameters with their values, JSON-ready."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready description from which `seewhen.method_from_json` makes the method again."""
        return {"method": type(self).name, "parameters": self.parameters()}

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that change with the method or any parameter."""
        text = json.dumps(self.to_json(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def __add__(self, other: Method) -> Combined:
        return Combined((self, other))


def _kinds(cls: type[Method]) -> Mapping[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def parameter_kinds(method: Method | type[Method]) -> Mapping[str, Any]:
    """The parameters of a method by name, with their types; of a part or a combination, those of its methods."""
    if isinstance(method, Part):
        return parameter_kinds(method.of)
    if isinstance(method, Combined):
        return {name: kind for each in method.methods for name, kind in parameter_kinds(each).items()}
    return _kinds(method if isinstance(method, type) else type(method))


def _checked(cls: type[Method], values: Mapping[str, Any]) -> dict[str, Any]:
    """The values under names that the method has, each of the type that its parameter has."""
    kinds = _kinds(cls) if values else {}
    unknown = set(values) - set(kinds)
    if unknown:
        raise no_parameter(cls.name, unknown, kinds)
    return {
        name: fitted(cls.name, name, kinds[name], value, name in cls.endless) for name, value in values.items()
    }


def meanings(cls: type[Method]) -> dict[str, str]:
    """What each parameter means: the text beside its type, `strength: Annotated[float, "..."]`; "" without one."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: " ".join(getattr(hints[f.name], "__metadata__", ())) for f in dataclasses.fields(cls)}


def make(cls: type[Method], preset: str | None = None, /, **parameters: Any) -> Method:
    """Build a method from a preset (the class defaults if None) and parameters that override it."""
    values: dict[str, Any] = {}
    if preset is not None:
        if preset not in cls.presets:
            raise no_preset(cls.name, preset, cls.presets)
        values.update(cls.presets[preset].values)
    values.update(_checked(cls, parameters))
    missing = [
        f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING and f.name not in values
    ]
    if missing:
        raise InvalidMethod(f"{cls.name} needs {' and '.join(missing)}.", f"As in {cls.name}:{missing[0]}=...")
    return cls(**values)


PartName = Literal["attention", "contrast"]


@dataclass(frozen=True)
class Combined(Method):
    """Several methods as one, `cai + vcd`: the interventions of all, the branches and the rule of the one that
    has them. Where two would have them, take only the attention of one: `pai:attention+vcd`."""

    name: ClassVar[str] = COMBINED
    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        flat = tuple(m for each in self.methods for m in (each.methods if isinstance(each, Combined) else (each,)))
        object.__setattr__(self, "methods", flat)
        object.__setattr__(self, "name", "+".join(part.name for part in flat))  # for messages
        for part in flat:
            if part.beams_only:
                raise InvalidMethod(f"{part.name} is a search over beams and cannot be combined.", "Use it alone.")
        _take_modes(self, flat)
        object.__setattr__(self, "samples_only", any(part.samples_only for part in flat))
        object.__setattr__(self, "options", tuple(dict.fromkeys(name for part in flat for name in part.options)))

    def parts(self, backbone: Backbone) -> Parts:
        """Interventions of all, contrast and judge of at most one each. A rule's own interventions come first."""
        found = [(method.name, method.parts(backbone)) for method in self.methods]
        scoring = _only(found, lambda parts: parts.branches or parts.rule is not None, "change the scores")
        judging = _only(found, lambda parts: parts.judge is not None, "judge tokens")
        others = [i for _, parts in found if parts is not scoring for i in parts.interventions]
        return Parts(
            (*scoring.interventions, *others),
            scoring.branches,
            scoring.rule,
            judge=judging.judge,
            budget=judging.budget,
        )

    def prepare(self, tokenizer: Any) -> Self:
        """All prepared."""
        return dataclasses.replace(self, methods=tuple(method.prepare(tokenizer) for method in self.methods))

    def generation_defaults(self) -> dict[str, Any]:
        """Those of all; the last wins."""
        return {k: v for method in self.methods for k, v in method.generation_defaults().items()}

    def in_words(self) -> str:
        """What each does."""
        return "; ".join(method.in_words() for method in self.methods)

    def replace(self, /, **changes: Any) -> Self:
        """A copy; a parameter goes to every method that has it, at least to one."""
        known = [parameter_kinds(method) for method in self.methods]
        unknown = [name for name in changes if not any(name in kinds for kinds in known)]
        if unknown:
            raise no_parameter(" and ".join(m.name for m in self.methods), unknown, {n for k in known for n in k})
        changed = [
            method.replace(**{name: value for name, value in changes.items() if name in kinds})
            for method, kinds in zip(self.methods, known, strict=True)
        ]
        return dataclasses.replace(self, methods=tuple(changed))

    def parameters(self) -> dict[str, Any]:
        """The methods, JSON-ready."""
        return {"methods": [method.to_json() for method in self.methods]}


@dataclass(frozen=True)
class Part(Method):
    """One part of a method: its interventions alone, or its contrast (with the plausibility cut) alone."""

    name: ClassVar[str] = PART
    part: PartName
    of: Method

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.of.name}:{self.part}")
        _take_modes(self, (self.of,))

    def parts(self, backbone: Backbone) -> Parts:
        """The parts that are kept."""
        whole = self.of.parts(backbone)
        scores = bool(whole.branches) or whole.rule is not None
        tilts = tuple(i for i in whole.interventions if isinstance(i, Tilt))
        kept = Parts()
        if self.part == "attention":
            # Beside a rule or a search, what is not a tilt serves it: SID's branch hides image columns, say.
            alone = tilts if scores or whole.loop is not None else whole.interventions
            kept = Parts(interventions=alone)
        elif scores:
            rest = tuple(i for i in whole.interventions if not isinstance(i, Tilt))
            kept = Parts(interventions=rest, branches=whole.branches, rule=whole.rule)
        if kept == Parts():
            raise InvalidMethod(
                f"{self.of.name} has no {self.part} with these parameters.", f"Use {self.of.name} as it is."
            )
        return kept

    def prepare(self, tokenizer: Any) -> Self:
        """The part of the prepared method."""
        return dataclasses.replace(self, of=self.of.prepare(tokenizer))

    def generation_defaults(self) -> dict[str, Any]:
        """Those of the whole method."""
        return self.of.generation_defaults()

    def in_words(self) -> str:
        """What the whole does, and which part of it is kept."""
        return f"{self.of.in_words()} ({self.part} alone)"

    def replace(self, /, **changes: Any) -> Self:
        """The part of the changed method."""
        return dataclasses.replace(self, of=self.of.replace(**changes))

    def parameters(self) -> dict[str, Any]:
        """The part and the method it is taken from, JSON-ready."""
        return {"part": self.part, "of": self.of.to_json()}


def _only(found: list[tuple[str, Parts]], has: Callable[[Parts], Any], what: str) -> Parts:
    """The parts of the one method that does something, or none at all."""
    doing = [(name, parts) for name, parts in found if has(parts)]
    if len(doing) > 1:
        first, second = doing[0][0], doing[1][0]
        tilts = (name for name, parts in doing[:2] if any(isinstance(i, Tilt) for i in parts.interventions))
        tilted = next(tilts, None)
        other = second if tilted == first else first
        way_out = f"Take the attention of one alone, as in {tilted}:attention+{other}."
        raise InvalidMethod(
            f"{first} and {second} both {what} and cannot be combined.", way_out if tilted else "Use one of them."
        )
    return doing[0][1] if doing else Parts()


def part_of(method: Method, part: PartName) -> Method:
    """A part of a method; of a combination, that part of each."""
    if isinstance(method, Combined):
        return Combined(tuple(part_of(each, part) for each in method.methods))
    return Part(part, method)


def _take_modes(whole: Method, members: tuple[Method, ...]) -> None:
    """What all members can do; instance attributes hide the class's."""
    for name in ("beams", "batches", "compiles", "joins"):
        object.__setattr__(whole, name, all(getattr(member, name) for member in members))
    for name in ("needs_image", "judges"):
        object.__setattr__(whole, name, any(getattr(member, name) for member in members))
