"""Writes the help of every command into docs/command-line.md: `python docs/command_line.py`.

A test compares the file with what this would write, so that page and program never say different things.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("command-line.md")
START = "<!-- commands: written by docs/command_line.py -->"


def commands() -> str:
    """All commands in Markdown."""
    import typer

    from seewhen.cli import app

    parts: list[str] = []
    _write("seewhen", typer.main.get_command(app), parts)
    return "\n".join(parts) + "\n"


def page() -> str:
    """The page with its commands as they are now."""
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(START)
    return before + mark + "\n\n" + commands()


def _write(name: str, command: Any, parts: list[str]) -> None:
    inner = getattr(command, "commands", None)
    if inner is None or name != "seewhen":
        parts += [f"## {name}", ""]
        parts += [*_paragraphs(inspect.cleandoc(command.help or "")), ""]
    if inner is not None:
        for each, found in inner.items():
            _write(f"{name} {each}", found, parts)
        return
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
    rows = [(f"`{p.name.upper()}`", p, "") for p in arguments]
    rows += [(" ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts)), p, _default(p)) for p in options]
    if rows:
        parts += ["| option | what it says | default |", "|---|---|---|"]
        parts += [f"| {shown} | {_cell(p.help or '')} | {default} |" for shown, p, default in rows]
        parts.append("")


def _paragraphs(text: str) -> list[str]:
    """The help; paragraphs that are commands become code."""
    from seewhen.cli.groups import is_example

    found: list[str] = []
    for paragraph in text.split("\n\n"):
        code = is_example(paragraph)
        found += ["", *(f"    {line}" for line in paragraph.splitlines())] if code else ["", paragraph]
    return found[1:]


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    # Brackets would be links; in code they are not.
    parts = plain.split("`")
    parts[::2] = [part.replace("[", "\\[") for part in parts[::2]]
    return "`".join(parts)


def _default(option: Any) -> str:
    value = option.default
    if getattr(option, "required", False):
        return "required"
    if value is None or isinstance(value, bool) or callable(value) or value in ("", [], ()):
        return ""
    return f"`{value}`" if isinstance(value, (str, int, float, Path)) else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
