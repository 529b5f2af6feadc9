"""The registry: every method by name, ours and those of other packages.

Methods, and torch with them, are imported on first use: a name that does not exist is refused at once.
Another package adds a method by an entry point in the group `seewhen.methods` whose value is a
`Method` subclass; see docs/add-a-method.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidMethod
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
    """The inverse of `Method.to_json`; a stranger's file may hold anything."""
    from seewhen.decoding.method import Combined, Part, make

    match description:
        case {"method": Combined.name, "parameters": {"methods": [_, *_] as members}}:
            return Combined(tuple(map(method_from_json, members)))
        case {"method": Combined.name, "parameters": {"attention": one, "contrast": other}}:  # until 0.2.0
            return Combined((method_from_json(one), method_from_json(other)))
        case {"method": Part.name, "parameters": {"part": "attention" | "contrast" as part, "of": whole}}:
            return Part(part, method_from_json(whole))
        case {"method": str(name), "parameters": Mapping() as parameters}:
            return make(method_class(name), None, **parameters)
    raise InvalidMethod("This describes no method.", "What `Method.to_json` gives does.")
