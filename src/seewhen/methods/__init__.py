"""The registry: every method by name, ours and those of other packages.

Methods, and torch with them, are imported on first use: a name that does not exist is refused at once.
Another package adds a method by an entry point in the group `seewhen.methods` whose value is a
`Method` subclass; see docs/add-a-method.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidMethod

if TYPE_CHECKING:
    from seewhen.methods.base import Method

# name -> module and class; imported on first use.
_BUILT_IN = {
    "regular": ("regular", "Regular"),
    "min-p": ("regular", "MinP"),
    "cai": ("cai", "CAI"),
    "cai-gla": ("cai_gla", "CAIGLA"),
    "pai": ("pai", "PAI"),
    "vcd": ("vcd", "VCD"),
    "icd": ("icd", "ICD"),
    "m3id": ("m3id", "M3ID"),
    "sid": ("sid", "SID"),
    "opera": ("opera", "Opera"),
    "vti": ("vti", "VTI"),
    "ict": ("ict", "ICT"),
    "agla": ("agla", "AGLA"),
    "only": ("only", "ONLY"),
    "dola": ("dola", "DoLa"),
    "farsight": ("farsight", "FarSight"),
    "saliency": ("saliency", "Saliency"),
    "locore": ("saliency", "LocoRE"),
    "memvr": ("memvr", "MemVR"),
}


@cache
def _plugins() -> dict[str, Any]:
    return {entry.name: entry for entry in entry_points(group="seewhen.methods")}


def method_names() -> tuple[str, ...]:
    """The names of all methods, built-in first."""
    return (*_BUILT_IN, *(name for name in sorted(_plugins()) if name not in _BUILT_IN))


def check_names(specs: Iterable[str]) -> None:
    """Refuse specs such as `cai:paper` or `cai+vcd` that name no method, without importing one."""
    for name in (part.split(":")[0].strip() for spec in specs for part in spec.split("+")):
        if name not in method_names():
            raise InvalidMethod(f"There is no method {name!r}.", f"Methods: {', '.join(method_names())}.")


def method_class(name: str) -> type[Method]:
    """The class of the method called `name`."""
    check_names([name])
    if name in _BUILT_IN:
        module, attribute = _BUILT_IN[name]
        return getattr(import_module(f"seewhen.methods.{module}"), attribute)
    from seewhen.methods.base import Method

    cls = _plugins()[name].load()
    if not (isinstance(cls, type) and issubclass(cls, Method)):
        raise InvalidMethod(
            f"The entry point {name!r} gives {cls!r}, which is not a subclass of seewhen.Method.",
            "Fix the package that registers it.",
        )
    return cls


def method(name: str | Method, preset: str | None = None, **parameters: Any) -> Method:
    """Make a method: `method("cai", preset="reference", start_layer=3)`.

    A preset can be part of the name, `"cai:reference:llava-1.5/coco/adversarial"`, and two methods can be
    combined, `"cai+vcd"`: the attention of the first with the contrast of the second.
    """
    if not isinstance(name, str):
        return name.replace(**parameters)
    check_names([name])
    from seewhen.methods.base import make

    if "+" in name:
        first, second = name.split("+", 1)
        if preset or parameters:
            raise InvalidMethod("Parameters of a combination are ambiguous.", "Make both methods, then add them.")
        return method(first.strip()) + method(second.strip())
    if ":" in name:
        name, preset = name.split(":", 1)
    return make(method_class(name), preset, **parameters)


def method_from_json(description: dict[str, Any]) -> Method:
    """The inverse of `Method.to_json`."""
    from seewhen.methods.base import Combined, make

    name, parameters = description["method"], description["parameters"]
    if name == Combined.name:
        return Combined(*(method_from_json(parameters[part]) for part in ("attention", "contrast")))
    return make(method_class(name), None, **parameters)
