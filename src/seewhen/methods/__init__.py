"""Methods by name: `method("cai:paper")`; the registry is in `known.py`, the grammar of names in `grammar.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidMethod
from seewhen.methods.grammar import parse
from seewhen.methods.known import METHODS, method_class, method_from_json, method_names

if TYPE_CHECKING:
    from seewhen.decoding.method import Method

__all__ = ["METHODS", "method", "method_class", "method_from_json", "method_names"]


def method(name: str | Method, preset: str | None = None, **parameters: Any) -> Method:
    """Make a method from its name, a preset and parameters.

    Args:
        name: `"cai"`; with a preset or parameters `"cai:paper:contrast=5"`; one part of it, `"cai:attention"`;
            several as one, `"cai+vcd"`; with a file, `"vti:directions=FILE"`. Or a method, to change some of it.
        preset: The name of a preset; `seewhen methods NAME` lists them with their sources.
        **parameters: Values that overrule the preset's. In a combination they go to every method that has them.

    Returns:
        The method: a frozen dataclass that goes to JSON and back, and combines with `+`.

    Raises:
        InvalidMethod: There is no such method, preset or parameter, or a value is out of its range.

    Examples:
        >>> seewhen.method("cai", preset="paper", contrast=5) == seewhen.method("cai:paper:contrast=5")
        True
    """
    if isinstance(name, str):
        return parse(name, preset, parameters)
    if isinstance(name, type) or not hasattr(name, "parts"):
        raise InvalidMethod(
            f"{name!r} is no method.", "Give a name such as 'cai', or what seewhen.method returns."
        )
    if preset is not None:
        raise InvalidMethod(f"{name.name} is made already.", "Give a preset with a name.")
    return name.replace(**parameters) if parameters else name
