"""All commands of the command line, groups entered."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from seewhen import cli


def commands(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Each with its name, `calibrate vti`."""
    command = command or typer.main.get_command(cli.app)
    if not hasattr(command, "commands"):
        yield name, command
        return
    for inner in command.commands:
        yield from commands(command.commands[inner], f"{name} {inner}".strip())


def paths(command: Any) -> list[str]:
    """Options that take a path, by their first name."""
    hints = typing.get_type_hints(inspect.unwrap(command.callback))
    return [
        parameter.opts[0]
        for parameter in command.params
        if parameter.opts[0].startswith("--") and Path.__name__ in str(hints.get(parameter.name, ""))
    ]
