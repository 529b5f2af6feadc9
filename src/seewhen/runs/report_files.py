"""Writes a report: Markdown, LaTeX, JSON and a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seewhen.atomic import write
from seewhen.runs import wording
from seewhen.runs.grid import markdown_text, one_line, to_latex, to_markdown
from seewhen.runs.report import Group
from seewhen.runs.report_page import report_page
from seewhen.runs.store import to_json
from seewhen.runs.tables import group_grids, overview_grids, paper_grids, to_plain
from seewhen.runs.versions import package_versions


def write_report(groups: Sequence[Group], out: Path) -> list[Path]:
    """Makes report.md, report.tex, report.json and index.html in `out`; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "report.md": markdown(groups),
        "report.tex": latex(groups),
        "report.json": to_json(to_plain(groups)),
        "index.html": report_page(groups, dict(package_versions())),
    }
    for name, text in files.items():
        write(out / name, text, durable=True)
    return [out / name for name in files]


def markdown(groups: Sequence[Group]) -> str:
    """The report as Markdown."""
    parts = ["# Evaluation report\n", *(to_markdown(grid) for grid in overview_grids(groups))]
    for group in groups:
        facts = markdown_text(", ".join(f"{name} {value}" for name, value in group.facts.items()))
        told = "".join(f"- {markdown_text(text)}\n" for text in wording.findings(group))
        parts += [
            f"## {markdown_text(group.title)}\n\n{facts}\n",
            told,
            *(to_markdown(g) for g in group_grids(group)),
        ]
    with_ours = [g for g in paper_grids(groups) if any("measured" in text for row in g.rows for text in row)]
    if with_ours:
        parts += ["## The paper's tables, measured next to published\n", *(to_markdown(g) for g in with_ours)]
    return "\n".join(part for part in parts if part)


def latex(groups: Sequence[Group]) -> str:
    """All tables as LaTeX; the document needs booktabs and amssymb."""
    parts = ["% Tables of a seewhen report; needs \\usepackage{booktabs,amssymb}\n"]
    for group in groups:
        parts += [f"% {one_line(group.title)}\n", *(to_latex(grid) for grid in group_grids(group))]
    return "\n".join(parts)
