"""From the extension field of a request to a method. Clients choose numbers and named options, nothing else.

Free text is refused as a parameter because some of it is a path (`directions`), and token ids because a wrong one
can bring a GPU down; the operator's default method may have both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, get_args, get_origin

from seewhen.decoding.method import Combined, Method, Part, parameter_kinds
from seewhen.decoding.parameter_values import types_of
from seewhen.errors import InvalidMethod
from seewhen.methods import METHODS, method_class
from seewhen.methods.grammar import label, parse, read_setting, terms
from seewhen.server.failures import ApiError
from seewhen.server.ranges import range_of
from seewhen.server.schema import Seewhen

_MOST_COMBINED = 4
_LARGEST = 1000  # of a whole number
# Rows, passes or steps per token; seeds.
_CEILINGS = {"candidates": 8, "draws": 8, "retries": 8, "budget": 8, "drafts": 8, "noise_seed": 2**62 - 1}


def choose(asked: Seewhen | None, default: Method) -> Method:
    """The method a request asks for; what it leaves open comes from the server's default."""
    if asked is None:
        return default
    try:
        return _choose(asked, default)
    except InvalidMethod as error:
        raise ApiError(400, "invalid_method", error.message, error.hint, param="seewhen") from None


def _choose(asked: Seewhen, default: Method) -> Method:
    if asked.method is None and asked.preset is None:
        if not asked.parameters:
            return default
        return default.replace(**_checked(parameter_kinds(default), asked.parameters))
    if asked.method is None and isinstance(default, Combined | Part):
        raise InvalidMethod(f"The default here is {default.name}.", "Name the method whose preset you want.")
    name = asked.method or default.name
    allowed: dict[str, Any] = {}
    members = terms(name)
    if len(members) > _MOST_COMBINED:
        raise InvalidMethod(f"{len(members)} methods are too many for one.", f"Combine up to {_MOST_COMBINED}.")
    for term in members:
        cls = method_class(term.name)
        kinds = parameter_kinds(cls)
        _checked(kinds, dict(read_setting(cls, field, text) for field, text in term.settings.items()))
        allowed |= _checked(kinds, asked.parameters)
    return parse(name, asked.preset, _files_of(default, members[0].name) | asked.parameters | allowed)


def _files_of(default: Method, name: str) -> dict[str, Any]:
    """What a method cannot do without and no request may name, where the operator's default is that method."""
    if default.name != name:
        return {}
    return {field: getattr(default, field) for field in needed_files(type(default))}


def needed_files(cls: type[Method]) -> list[str]:
    """Parameters that no request may set and that have no value of their own: files fitted for a model."""
    closed = _closed(cls)
    return [field.name for field in dataclasses.fields(cls) if field.name in closed and _default(field) == ""]


def _checked(kinds: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with values of the right kind and size; a name the method does not have passes through."""
    return {name: _value(name, value, kinds[name]) if name in kinds else value for name, value in given.items()}


def _value(name: str, value: Any, kind: Any) -> Any:
    options = types_of(kind)
    if not all(_settable(option) for option in options):
        raise InvalidMethod(f"{name} cannot be set by a request.", "It is for the server's default method.")
    if value is None and name.endswith("seed"):
        raise InvalidMethod(f"{name} needs a number.", "Without one, answers would not repeat.")
    for option in options:
        if get_origin(option) is Literal and isinstance(value, str) and value in get_args(option):
            return value
        if option is type(None) and value is None:
            return None
        if option is bool and isinstance(value, bool):
            return value
        if isinstance(value, bool):
            continue
        if option is int and isinstance(value, int) and abs(value) <= _ceiling(name, True):
            return value
        if option is float and isinstance(value, int | float) and abs(value) <= _ceiling(name, False):
            return float(value)
    wanted = " or ".join(_called(option, name) for option in options)
    raise InvalidMethod(f"{name} has a value that it cannot take.", f"It takes {wanted}.")


def _ceiling(name: str, whole: bool) -> float:
    return _CEILINGS.get(name, _LARGEST if whole else 1e9)


def _settable(option: Any) -> bool:
    return option in (int, float, bool, type(None)) or get_origin(option) is Literal


def _called(option: Any, name: str) -> str:
    if get_origin(option) is Literal:
        return " or ".join(map(str, get_args(option)))
    if option is int:
        return f"a whole number up to {_ceiling(name, True)}"
    return {float: "a number", bool: "true or false", type(None): "null"}.get(option, "nothing else")


def public(method: Method) -> dict[str, Any]:
    """The method's description without what only the operator may see (paths, sentences)."""
    if isinstance(method, Combined | Part):  # in the grammar of methods, which a request may send back
        return {"method": label(_opened(method)), "parameters": {}}
    kinds, closed = parameter_kinds(method), _closed(method)
    open_ones = {n: value for n, value in method.parameters().items() if n in kinds and n not in closed}
    return {"method": method.name, "parameters": open_ones}


def _closed(method: Method | type[Method]) -> set[str]:
    """Parameters that no request may set."""
    return {name for name, kind in parameter_kinds(method).items() if not all(map(_settable, types_of(kind)))}


def _opened(method: Method) -> Method:
    """A combination or a part whose closed parameters have their defaults."""
    if isinstance(method, Combined):
        return Combined(tuple(map(_opened, method.methods)))
    if isinstance(method, Part):
        return Part(method.part, _opened(method.of))
    defaults = {f.name: f.default for f in dataclasses.fields(method) if f.name in _closed(method)}
    return method.replace(**{n: value for n, value in defaults.items() if value is not dataclasses.MISSING})


def offered(default: Method) -> list[dict[str, Any]]:
    """The catalogue, and of each method whether a request can use it: some need a file that the operator names."""
    able = {name: default.name == name or not needed_files(method_class(name)) for name in METHODS.working}
    return [{**entry, "usable": able[entry["id"]]} for entry in catalogue()]


@cache
def catalogue() -> tuple[dict[str, Any], ...]:
    """Every method with its presets and the parameters a request may set, for /v1/methods."""
    found = []
    for name in METHODS.working:
        cls = method_class(name)
        kinds = parameter_kinds(cls)
        closed = _closed(cls)
        open_ones = {field.name: field for field in dataclasses.fields(cls) if field.name not in closed}
        presets = {
            preset: {key: value for key, value in cls.presets[preset].values.items() if key in open_ones}
            for preset in sorted(cls.presets)
        }
        found.append(
            {
                "id": name,
                "object": "method",
                "summary": cls.summary,
                "source": cls.source,
                "presets": list(presets),
                "preset_values": presets,
                "parameters": [_parameter(cls, field, kinds[field.name], presets) for field in open_ones.values()],
                "decoding": "beams" if cls.beams_only else "sampling" if cls.samples_only else "any",
            }
        )
    return tuple(found)


def _parameter(
    cls: type[Method], field: dataclasses.Field[Any], kind: Any, presets: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A parameter with its kind, default and, for a number, the range in which it makes sense."""
    told: dict[str, Any] = {"name": field.name, "type": _type_name(kind), "default": _default(field)}
    options = types_of(kind)
    if int in options or float in options:
        whole = float not in options
        used = [_default(field), *(values.get(field.name) for values in presets.values())]
        numbers = [
            float(value) for value in used if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        told["range"] = range_of(cls, field.name, numbers, whole, _ceiling(field.name, whole))
    return told


def _default(field: dataclasses.Field[Any]) -> Any:
    return None if field.default is dataclasses.MISSING else field.default


def _type_name(kind: Any) -> list[str]:
    names = {int: "integer", float: "number", bool: "boolean", type(None): "null"}
    found: list[str] = []
    for option in types_of(kind):
        found += list(get_args(option)) if get_origin(option) is Literal else [names[option]]
    return found
