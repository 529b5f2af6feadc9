"""The report as one page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from seewhen.runs import wording
from seewhen.runs.plots import Dot, dot_plot
from seewhen.runs.published import document
from seewhen.runs.report import Group
from seewhen.runs.tables import group_grids, overview_grids, paper_grids

# Whatever a template is given is escaped, unless it is Markup.
TEMPLATES = Environment(
    loader=PackageLoader("seewhen.runs"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)


def style() -> str:
    """The style of every page, and of plots that stand alone."""
    return TEMPLATES.get_template("page.css").render()


def report_page(groups: Sequence[Group], about: dict[str, Any]) -> str:
    """The whole report."""
    # The paper and its slips are no part of a report on something else.
    of_paper = any(group.published for group in groups)
    slips = [n["text"] for n in document()["notes"] if n["kind"] in ("arithmetic", "text", "unit")]
    return TEMPLATES.get_template("report.html").render(
        title="seewhen report",
        overview=overview_grids(groups),
        groups=[_shown(group) for group in groups],
        source=document()["source"],
        slips=slips,
        paper=paper_grids(groups) if of_paper else [],
        about=about,
    )


def _shown(group: Group) -> dict[str, Any]:
    """What the page says of a group."""
    return {
        "title": group.title,
        "facts": group.facts,
        "findings": wording.findings(group),
        "plots": [_value_plot(group, index) for index in range(min(2, len(group.metrics)))],
        "grids": group_grids(group),
        "page": group.page,
    }


def _value_plot(group: Group, index: int) -> Markup:
    metric = group.metrics[index]
    base = group.line("regular")
    dots = []
    for line in group.lines:
        entry = line.metrics[metric.name]
        tone = "base" if line is base else "plain"
        for comparison in line.comparisons:
            if comparison.metric == metric and comparison.against == "regular" and comparison.verdict == "real":
                tone = {1: "better", -1: "worse", 0: "plain"}[comparison.gain]
        cell = group.published.get((line.label, metric.name))
        dots.append(
            Dot(
                wording.title(line.label),
                entry["value"],
                entry["low"],
                entry["high"],
                tone,
                cell.value if cell else None,
            )
        )
    arrow = {1: " (more is better)", -1: " (less is better)", 0: ""}[metric.better]
    return Markup(dot_plot(dots, metric.title + arrow, base.metrics[metric.name]["value"] if base else None))
