"""A table as a grid of text, and its rendering as Markdown and LaTeX."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    """A table: header, rows of text (first column is the row's name), notes under it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    links: tuple[tuple[str, ...], ...] = ()  # of the cells, for the page; none, or as many as cells

    def linked(self) -> list[list[tuple[str, str]]]:
        """The rows as (text, link)."""
        links = self.links or [("",) * len(row) for row in self.rows]
        return [list(zip(row, link, strict=True)) for row, link in zip(self.rows, links, strict=True)]


def pipe_table(header: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1) -> str:
    """A table in Markdown whose first columns hold `names`, the others numbers."""

    def line(row: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in row) + " |"

    rule = "|" + "---|" * names + "--:|" * (len(header) - names)
    return "\n".join([line(header), rule, *(line(row) for row in rows)])


def to_markdown(grid: Grid) -> str:
    """With its title and its notes."""
    rows = [[markdown_text(text) for text in row] for row in grid.rows]
    body = pipe_table([markdown_text(text) for text in grid.header], rows)
    notes = "".join(f"\n{markdown_text(note)}\n" for note in grid.notes)
    return f"### {markdown_text(grid.title)}\n\n{body}\n{notes}"


def one_line(text: str) -> str:
    """Without line breaks and other control characters: a name must not end a comment, a heading or a row."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


# What begins a tag, an entity, code, a link or an escape; a lone < as in p < 0.001 begins none.
_MARKDOWN = re.compile(r"<(?=[A-Za-z/!?])|&(?=[#\w])|[`\\]|(?<=\])[(\[:]|!(?=\[)")


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is: no HTML, no links, one line."""
    return _MARKDOWN.sub(lambda found: {"<": "&lt;", "&": "&amp;"}.get(found[0], "\\" + found[0]), one_line(text))


_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "−": "$-$",
    "×": r"$\times$",
    "▲": r"$^{\blacktriangle}$",
    "▼": r"$^{\blacktriangledown}$",
    "—": "--",
}


def latex_text(text: str) -> str:
    """Text on one line with LaTeX's special characters made harmless."""
    plain = "".join(_LATEX.get(character, character) for character in one_line(text))
    return f"{{}}{plain}" if plain.lstrip()[:1] in ("[", "*") else plain  # an argument of the \\ before it


def to_latex(grid: Grid) -> str:
    """A booktabs table (needs booktabs and amssymb)."""

    def line(row: Sequence[str]) -> str:
        return " & ".join(latex_text(text) for text in row) + r" \\"

    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{latex_text(' '.join([grid.title + '.', *grid.notes]))}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(grid.header) - 1)}}}",
        r"\toprule",
        line(grid.header),
        r"\midrule",
        *(line(row) for row in grid.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"
