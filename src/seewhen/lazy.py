"""Names that are imported on first use: importing a module stays fast, and low rooms need not know high ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    module: str, public: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a module; `public` has its names by where they live, below `seewhen`."""
    homes = {name: home for home, names in public.items() for name in names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        value = getattr(import_module(f"seewhen.{homes[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *homes})

    return get, names


_PROVIDERS: dict[str, str] = {}


def provide(**homes: str) -> None:
    """Say which module gives a function by this name; the package does, for all its rooms."""
    _PROVIDERS.update(homes)


def provided(name: str) -> Callable[..., Any]:
    """A function that a higher room gives: what an answer shows itself with, say."""
    found: Callable[..., Any] = getattr(import_module(f"seewhen.{_PROVIDERS[name]}"), name)
    return found
