"""A value given for a method's parameter: made one of the parameter's own types, or refused.

The grammar reads text and the server reads JSON, each with its own rules; what a program passes is seen here
first. A parameter of another kind (a plugin may have callables) takes anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from seewhen.errors import InvalidMethod


def types_of(kind: Any) -> tuple[Any, ...]:
    """The types that a parameter may have: those of a union, or the one."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def fitted(method: str, name: str, kind: Any, value: Any, endless: bool) -> Any:
    """`value` as a value of type `kind`. 3 and 3.0 are one number where only fractions are meant; `endless` allows
    infinity."""
    options = types_of(kind)
    for option in sorted(options, key=lambda option: option is float):  # a whole number stays one where it may
        for found in _as(option, value):
            if not isinstance(found, float) or math.isfinite(found) or (endless and math.isinf(found)):
                return found
            what = "infinite" if math.isinf(found) else "not a number"
            raise InvalidMethod(f"{method}: {name}={value} is {what}.", f"{name} takes {_called_all(options)}.")
    raise InvalidMethod(f"{method}: {name}={value!r} is not understood.", f"{name} takes {_called_all(options)}.")


def _as(option: Any, value: Any) -> list[Any]:
    """`value` as one type: a list of one value, or of none."""
    if option is type(None):
        return [None] if value is None else []
    if option is bool:
        return [value] if isinstance(value, bool) else []
    if option is int:
        whole = not isinstance(value, bool) and isinstance(value, Integral)
        return [int(value)] if whole else []
    if option is float:
        return [_float(value)] if not isinstance(value, bool) and isinstance(value, Real) else []
    if option is str:
        return [os.fspath(value)] if isinstance(value, str | os.PathLike) else []
    if get_origin(option) is Literal:
        return [value] if isinstance(value, str) and value in get_args(option) else []
    if get_origin(option) is tuple:
        return _tuple(get_args(option)[0], value)
    return [value]


def _float(value: Real) -> float:
    try:
        return float(value)
    except OverflowError:
        return -math.inf if value < 0 else math.inf


def _tuple(inner: Any, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return []
    found = [each for one in value for each in _as(inner, one)]
    return [tuple(found)] if len(found) == len(value) else []


def _called_all(options: Sequence[Any]) -> str:
    return " or ".join(map(called, options))


def called(option: Any) -> str:
    """A type in words."""
    if option is type(None):
        return "none"
    if get_origin(option) is Literal:
        return " or ".join(map(str, get_args(option)))
    if get_origin(option) is tuple:
        return f"a list ({called(get_args(option)[0])})"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}.get(option, str(option))
