"""The registry: every method by name, ours and those of other packages.

Methods, and torch with them, are imported on first use: a name that does not exist is refused at once.
Another package adds a method by an entry point in the group `seewhen.methods` whose value is a
`Method` subclass; see docs/add-a-method.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seewhen.registry import Registry

if TYPE_CHECKING:
    from seewhen.decoding.method import Method

METHODS = Registry(
    "method",
    "seewhen.methods",
    ("seewhen.decoding.method", "Method"),
    {
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
        "confirm": ("confirm", "Confirm"),
    },
)


def method_names() -> tuple[str, ...]:
    """The names of all methods, built-in first, then those of other packages."""
    return METHODS.names


def method_class(name: str) -> type[Method]:
    """The class of the method called `name`."""
    found: type[Method] = METHODS.load(name)
    return found


def method_from_json(description: Mapping[str, Any]) -> Method:
    """The inverse of `Method.to_json`."""
    from seewhen.decoding.method import Combined, Part, make

    name, parameters = description["method"], description["parameters"]
    if name == Combined.name:
        # Until 0.2.0 a combination had two members with names.
        members = parameters.get("methods") or [parameters["attention"], parameters["contrast"]]
        return Combined(tuple(map(method_from_json, members)))
    if name == Part.name:
        return Part(parameters["part"], method_from_json(parameters["of"]))
    return make(method_class(name), None, **parameters)
