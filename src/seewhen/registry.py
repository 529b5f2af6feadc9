"""Names for classes: ours, and those that other packages add by entry points. A class is imported on first use."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from seewhen.errors import InvalidMethod


@dataclass(frozen=True)
class Registry:
    """All classes of one kind by name; `group` is the entry points' and the package of our own."""

    what: str  # "method", "benchmark"
    group: str
    base: tuple[str, str]  # module and class that every one derives from
    built_in: Mapping[str, tuple[str, str]]  # name -> module in the package, class

    @cached_property
    def _entries(self) -> tuple[EntryPoint, ...]:
        return tuple(entry_points(group=self.group))

    @cached_property
    def _others(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in self._entries}

    @property
    def names(self) -> tuple[str, ...]:
        """Built-in first."""
        return (*self.built_in, *(name for name in sorted(self._others) if name not in self.built_in))

    @cached_property
    def working(self) -> tuple[str, ...]:
        """The names without those that cannot be had, of which a warning says why: a broken package is no reason
        to show none of the others. Our own are not imported."""
        found = []
        for name in self.names:
            try:
                self.check(name)
                if name not in self.built_in:
                    self.load(name)
                found.append(name)
            except InvalidMethod as error:
                warnings.warn(str(error), stacklevel=2)
        return tuple(found)

    def check(self, name: str) -> None:
        """Refuse a name that does not exist, or that several packages have, without importing anything for it."""
        if name not in self.names:
            raise InvalidMethod(
                f"There is no {self.what} {name!r}.",
                f"{nearest(name, self.names)}{self.what.title()}s: {', '.join(self.names)}.",
            )
        packages = [_package(entry) for entry in self._entries if entry.name == name]
        if name in self.built_in:
            packages.insert(0, "seewhen")
        if len(packages) > 1:
            raise InvalidMethod(
                f"The {self.what} {name!r} is in {' and in '.join(packages)}, so nobody knows which is meant.",
                "Uninstall one of them, or give its entry point another name.",
            )

    def version(self, name: str) -> dict[str, str]:
        """The package that `name` is from and its version; nothing of our own."""
        entry = self._others.get(name)
        return {} if entry is None or entry.dist is None else {entry.dist.name: entry.dist.version}

    def load(self, name: str) -> Any:
        """The class called `name`."""
        self.check(name)
        if name in self.built_in:
            module, attribute = self.built_in[name]
            return getattr(import_module(f"{self.group}.{module}"), attribute)
        base = getattr(import_module(self.base[0]), self.base[1])
        entry = self._others[name]
        try:
            found = entry.load()
        except Exception as error:
            raise InvalidMethod(
                f"The {self.what} {name!r} of {_package(entry)} cannot be loaded: "
                f"{type(error).__name__}: {error}.",
                f"`python -c 'import {entry.module}'` shows where.",
            ) from error
        if not (isinstance(found, type) and issubclass(found, base)):
            raise InvalidMethod(
                f"The entry point {name!r} gives {found!r}, which is not a subclass of {self.base[1]}.",
                "Fix the package that registers it.",
            )
        if getattr(found, "name", "") != name:  # what a run or a file says is looked up by that name
            raise InvalidMethod(
                f"The entry point {name!r} of {_package(entry)} gives {found.__name__}, whose name is "
                f"{getattr(found, 'name', '')!r}.",
                "Give the class the name of its entry point.",
            )
        return found


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist is not None else entry.module


def nearest(name: str, known: Iterable[str]) -> str:
    """A question that comes before the list of names, where one of them was probably meant."""
    near = difflib.get_close_matches(name, list(known), 1)
    return f"Did you mean {near[0]}? " if near else ""


def no_parameter(who: str, unknown: Iterable[str], known: Iterable[str], several: bool = False) -> InvalidMethod:
    """The error of parameters that `who`, one or several, does not have."""
    wrong, names = sorted(unknown), list(known)
    named = f"{'have' if several else 'has'} no parameter {', '.join(map(repr, wrong))}"
    hint = "".join(nearest(name, names) for name in wrong)
    return InvalidMethod(f"{who} {named}.", f"{hint}Parameters: {', '.join(names) or 'none'}.")


def no_preset(who: str, preset: str, known: Iterable[str]) -> InvalidMethod:
    """The error of a preset that `who` does not have."""
    names = list(known)
    main = [name for name in names if "/" not in name]
    cells = len(names) - len(main)
    more = [f"and {cells} for a model and a data set (`seewhen methods {who}`)"] if cells else []
    return InvalidMethod(
        f"{who} has no preset {preset!r}.",
        f"{nearest(preset, names)}Its presets are: {', '.join(main + more) or 'none'}.",
    )
