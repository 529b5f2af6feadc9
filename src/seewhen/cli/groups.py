"""How the help of a command, and a list of commands, is laid out."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand, TyperGroup

_EXAMPLE = re.compile(r"(?:\w+=\S+ )*seewhen ")
# What belongs together: a flag with its value, and what is in quotes.
_PIECE = re.compile(r"""(?:--?[a-z][\w-]*\ (?!-))?(?:[^\s"']|"[^"]*"|'[^']*')+""")
# Kinds of values as typer writes them: <int range>, <list[str]>.
_KIND = re.compile(r"<(?:list\[)?(\w+)\]?(?: range)?>")


def is_example(paragraph: str) -> bool:
    """Whether a paragraph of a command's help is a command to give."""
    return _EXAMPLE.match(paragraph.strip()) is not None


class Command(TyperCommand):
    """A command whose examples stand apart, each so that it can be copied, also where it takes two lines."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        paragraphs = [each.strip() for each in (self.help or "").split("\n\n")]
        for paragraph in paragraphs:
            if not is_example(paragraph):
                formatter.write_paragraph()
                with formatter.indentation():
                    formatter.write_text(paragraph)
        examples = list(filter(is_example, paragraphs))
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    lines = broken(example, formatter.width - formatter.current_indent)
                    formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in lines))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.get_params(ctx) if each.param_type_name == "argument"]
        return [self.options_metavar or "", *map(_usage, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        records: dict[str, list[tuple[str, str]]] = {"argument": [], "option": []}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                named = _KIND.sub(lambda kind: f"<{kind[1].lower()}>", record[0])
                if parameter.param_type_name == "argument":
                    name = parameter.metavar or parameter.name
                    named = named.replace(name, name.upper(), 1)
                records[parameter.param_type_name].append((named, record[1]))
        for title, rows in (("Arguments", records["argument"]), ("Options", records["option"])):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _usage(argument: Any) -> str:
    name = (argument.metavar or argument.name).upper().rstrip(".")
    several = "..." if argument.nargs != 1 else ""
    return f"{name}{several}" if argument.required else f"[{name}]{several}"


def broken(command: str, width: int) -> list[str]:
    """A command on as many lines as `width` asks for, each continued as a shell does it."""
    lines = [""]
    for piece in _PIECE.findall(command):
        if lines[-1] and len(lines[-1]) + len(piece) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"    {piece}")
        else:
            lines[-1] += f" {piece}" if lines[-1] else piece
    return lines


class Commands(TyperGroup):
    """A list of commands whose sentences are wrapped, where click cuts them off."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, command.get_short_help_str(limit=1000)) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
