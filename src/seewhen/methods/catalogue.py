"""What every method is, told without importing it: torch takes seconds, and `seewhen methods` should not.

`catalogue.json` holds what the classes of this package say of themselves; `make docs` writes it, a test compares.
Methods of other packages are asked themselves.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal

from seewhen.methods.known import METHODS, method_class
from seewhen.registry import no_preset

if TYPE_CHECKING:
    from seewhen.decoding.method import Method

FILE = "catalogue.json"
_KINDS = {"int": int, "float": float, "bool": bool, "str": str, "None": type(None), "NoneType": type(None)}


def described(name: str) -> Mapping[str, Any]:
    """Summary, source, modes, parameters and presets of the method called `name`."""
    METHODS.check(name)
    return _written()[name] if name in METHODS.built_in else describe(method_class(name))


@cache
def _written() -> dict[str, dict[str, Any]]:
    text = resources.files("seewhen.methods").joinpath(FILE).read_text(encoding="utf-8")
    return {entry["name"]: _tuples(entry) for entry in json.loads(text)}


def _tuples(value: Any) -> Any:
    """JSON knows no tuples, and parameters no lists."""
    if isinstance(value, dict):
        return {name: _tuples(inner) for name, inner in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def describe(cls: type[Method]) -> dict[str, Any]:
    """The same from the class itself."""
    return {
        "name": cls.name,
        "summary": cls.summary,
        "source": cls.source,
        "modes": _modes(cls),
        "parameters": _parameters(cls),
        "presets": {
            n: {"values": dict(p.values), "source": p.source, "sources": dict(p.sources)}
            for n, p in cls.presets.items()
        },
    }


def _parameters(cls: type[Method]) -> dict[str, dict[str, Any]]:
    """Default, type and meaning of each parameter."""
    from seewhen.decoding.method import meanings

    hints, meaning = typing.get_type_hints(cls), meanings(cls)
    return {
        f.name: {
            "default": None if f.default is dataclasses.MISSING else f.default,
            "type": _type_name(hints[f.name]),
            "meaning": meaning[f.name],
        }
        for f in dataclasses.fields(cls)
    }


def _type_name(hint: Any) -> str:
    """`"a" | "b"` for literals, the plain name for classes, as written for anything else."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(repr, typing.get_args(hint)))
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _modes(cls: type[Method]) -> str:
    modes = ["sampling"] if not cls.beams_only else []
    if not cls.beams_only and not cls.samples_only:
        modes.insert(0, "greedy")
    if cls.beams:
        modes.append("beams")
    if cls.batches:
        modes.append("batches")
    if cls.compiles:
        modes.append("compile")
    return ", ".join(modes)


def check_preset(name: str, preset: str) -> None:
    """Refuse a preset that a method of this package does not have."""
    if name in METHODS.built_in and preset not in described(name)["presets"]:
        raise no_preset(name, preset, described(name)["presets"])


def parameters_of(name: str) -> Mapping[str, Any] | None:
    """The parameters of a method of this package, None of another's: its class would have to be imported."""
    return described(name)["parameters"] if name in METHODS.built_in else None


def options_of(name: str, parameter: str) -> tuple[Any, ...]:
    """The types that a parameter may have, as far as their names tell; none where one does not."""
    parts = described(name)["parameters"][parameter]["type"].split(" | ")
    if all(part in _KINDS for part in parts):
        return tuple(_KINDS[part] for part in parts)
    if all(part[0] == part[-1] == "'" for part in parts):
        return (Literal[tuple(part.strip("'") for part in parts)],)
    return ()
