"""From `NAME[:PRESET][:PART][:parameter=value]` to a method."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from seewhen.errors import InvalidMethod

if TYPE_CHECKING:
    from seewhen.methods.base import Method

PARTS = ("attention", "contrast")


@dataclasses.dataclass(frozen=True)
class Chosen:
    """A method with the words it was asked for by."""

    label: str
    method: Method


def choose(spec: str, parameters: Sequence[str] = ()) -> Chosen:
    """The method that `spec` names; each of `parameters` is `name=value`, and the method must have it."""
    return choose_all([spec], parameters)[0]


def choose_all(specs: Sequence[str], parameters: Sequence[str] = ()) -> list[Chosen]:
    """The methods that `specs` name. A parameter goes to every method that has it, at least to one."""
    from seewhen.methods import check_names

    if not specs:
        raise InvalidMethod("No method is named.", "For example: --methods regular,cai")
    check_names(specs)
    shared = dict(_pair(text) for text in parameters)
    taken: set[str] = set()
    chosen = [_choose(spec.strip(), shared, taken) for spec in specs]
    for name in shared:
        if name not in taken:
            known = ", ".join(dict.fromkeys(n for spec in specs for n in _known(spec)))
            raise InvalidMethod(
                f"{' and '.join(specs)} {'has' if len(specs) == 1 else 'have'} no parameter {name!r}.",
                f"Parameters: {known or 'none'}.",
            )
    labels = [each.label for each in chosen]
    double = next((label for label in labels if labels.count(label) > 1), None)
    if double is not None:
        raise InvalidMethod(f"{double} is named twice.", "Name each method once.")
    return chosen


def _choose(spec: str, shared: Mapping[str, str], taken: set[str]) -> Chosen:
    from seewhen.methods import method

    if "+" in spec:
        parts = [_choose(part.strip(), shared, taken).method for part in spec.split("+", 1)]
        return Chosen(spec, parts[0] + parts[1])
    name, preset, part, own = _take_apart(spec)
    fields = _fields(name)
    given = {key: text for key, text in shared.items() if key in fields and key not in own}
    taken.update(given)
    values = {
        key: parse_value(fields[key], text, key) if key in fields else text for key, text in (given | own).items()
    }
    made = method(name, preset, **values)
    if part is not None:
        from seewhen.runs.controls import Part

        made = Part(part, made)
    label = ":".join([spec, *(f"{key}={text}" for key, text in given.items())])
    return Chosen(label, made)


def _take_apart(spec: str) -> tuple[str, str | None, Any, dict[str, str]]:
    name, *rest = spec.split(":")
    own = dict(_pair(piece) for piece in rest if "=" in piece)
    plain = [piece for piece in rest if "=" not in piece]
    part = plain.pop() if plain and plain[-1] in PARTS else None
    return name, ":".join(plain) or None, part, own


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InvalidMethod(f"{text!r} is not name=value.", "For example: --param contrast=3")
    return name.strip().replace("-", "_"), value.strip()


def _fields(name: str) -> dict[str, Any]:
    """The parameters of a method with their types."""
    from seewhen.methods import method_class

    cls = method_class(name)
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def _known(spec: str) -> list[str]:
    return [name for part in spec.split("+") for name in _fields(part.strip().split(":")[0])]


def parse_value(kind: Any, text: str, name: str) -> Any:
    """`text` as a value of type `kind`: numbers, words, true and false, none where it is allowed."""
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    for option in options:
        for value in _readings(option, text):
            return value
    wanted = " or ".join(_called(option) for option in options)
    raise InvalidMethod(f"{name}={text} is not understood.", f"{name} takes {wanted}.")


def _readings(option: Any, text: str) -> list[Any]:
    """`text` read as one type: a list of one value, or of none."""
    lowered = text.lower()
    if option is type(None):
        return [None] if lowered in ("none", "null", "") else []
    if option is bool:
        return [lowered in ("true", "yes", "1")] if lowered in ("true", "yes", "1", "false", "no", "0") else []
    if get_origin(option) is Literal:
        return [text] if text in get_args(option) else []
    if get_origin(option) is tuple:
        inner = [reading for piece in text.split(",") for reading in _readings(get_args(option)[0], piece.strip())]
        return [tuple(inner)] if len(inner) == len(text.split(",")) else []
    if option in (int, float):
        try:
            return [option(text)]
        except ValueError:
            return []
    return [text] if option is str else []


def _called(option: Any) -> str:
    if option is type(None):
        return "none"
    if get_origin(option) is Literal:
        return " or ".join(get_args(option))
    if get_origin(option) is tuple:
        return f"values with commas ({_called(get_args(option)[0])})"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(option, str(option))
