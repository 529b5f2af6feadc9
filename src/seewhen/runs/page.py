"""The report as one page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from seewhen.runs import words
from seewhen.runs.plots import Dot, dot_plot
from seewhen.runs.published import document
from seewhen.runs.report import Group
from seewhen.runs.tables import Grid, group_grids, overview_grids, paper_grids

STYLE = """
:root { color-scheme: light dark; --ink:#1d2329; --soft:#5b6570; --rule:#d9dee3; --page:#fff; --card:#f6f8fa;
  --better:#12805c; --worse:#c2410c; --base:#5b6570; --plain:#2563ab; --pub:#8a5cc2; }
@media (prefers-color-scheme: dark) { :root { --ink:#e6e9ec; --soft:#9aa5b1; --rule:#353c44; --page:#14181c;
  --card:#1c2127; --better:#4cc38a; --worse:#f5935b; --base:#9aa5b1; --plain:#7ab2f4; --pub:#c4a1f2; } }
* { box-sizing:border-box; }
body { margin:0 auto; max-width:1080px; padding:28px 24px 60px; background:var(--page); color:var(--ink);
  font:15px/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size:26px; margin:0 0 4px; } h2 { font-size:20px; margin:44px 0 8px; padding-top:18px;
  border-top:1px solid var(--rule); } h3 { font-size:15px; margin:26px 0 6px; }
p.lead, .note, .facts { color:var(--soft); } .note { font-size:13px; margin:4px 0; }
.facts { font-size:13px; margin:0 0 14px; } .facts b { color:var(--ink); font-weight:600; }
ul.findings { background:var(--card); border-radius:8px; padding:14px 20px 14px 34px; margin:12px 0 8px; }
ul.findings li { margin:5px 0; }
.wide { overflow-x:auto; }
table { border-collapse:collapse; font-size:13.5px; font-variant-numeric:tabular-nums; }
th, td { padding:5px 12px 5px 0; text-align:right; border-bottom:1px solid var(--rule); white-space:nowrap; }
th { font-weight:600; color:var(--soft); white-space:normal; vertical-align:bottom; }
th:first-child, td:first-child { text-align:left; }
.wide tr > :first-child { position:sticky; left:0; background:var(--page); }
td { vertical-align:top; } td small { display:block; color:var(--soft); font-weight:400; font-size:11.5px; }
td.better { color:var(--better); font-weight:600; } td.worse { color:var(--worse); font-weight:600; }
.pair { display:grid; grid-template-columns:1fr; gap:10px; } svg { width:100%; max-width:760px; display:block; }
details { margin-top:14px; } summary { cursor:pointer; color:var(--plain); }
footer { margin-top:50px; padding-top:12px; color:var(--soft); font-size:12px; border-top:1px solid var(--rule); }
svg text { font-family:inherit; font-size:12px; fill:var(--ink); } svg .tick, svg .axis { fill:var(--soft); }
svg .grid { stroke:var(--rule); } svg .zero { stroke:var(--soft); stroke-dasharray:4 3; }
svg .bar { stroke-width:3; stroke-linecap:round; opacity:.55; } svg .curve { fill:none; stroke-width:2; }
svg .band { stroke:none; opacity:.13; } svg .chosen { fill:none; stroke:var(--ink); stroke-width:1.5; }
.plain .bar { stroke:var(--plain); } .plain .dot { fill:var(--plain); }
.better .bar { stroke:var(--better); } .better .dot { fill:var(--better); }
.worse .bar { stroke:var(--worse); } .worse .dot { fill:var(--worse); }
.base .bar { stroke:var(--base); } .base .dot { fill:var(--base); }
svg .published { fill:none; stroke:var(--pub); stroke-width:2; }
.line0 .curve, .line0 .dot { stroke:#2563ab; } .line0 .dot, .line0 .band { fill:#2563ab; }
.line1 .curve, .line1 .dot { stroke:#c2410c; } .line1 .dot, .line1 .band { fill:#c2410c; }
.line2 .curve, .line2 .dot { stroke:#12805c; } .line2 .dot, .line2 .band { fill:#12805c; }
.line3 .curve, .line3 .dot { stroke:#8a5cc2; } .line3 .dot, .line3 .band { fill:#8a5cc2; }
.line4 .curve, .line4 .dot { stroke:#b7791f; } .line4 .dot, .line4 .band { fill:#b7791f; }
.line5 .curve, .line5 .dot { stroke:#0e7490; } .line5 .dot, .line5 .band { fill:#0e7490; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document_page(title: str, body: str) -> str:
    """A complete page around a body."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def grid_html(grid: Grid) -> str:
    def cell(text: str) -> str:
        tone = ' class="better"' if "▲" in text else ' class="worse"' if "▼" in text else ""
        # The interval goes under the value, so that wide tables fit.
        value, bracket, rest = text.partition(" [")
        return f"<td{tone}>{escape(value)}" + (f"<small>[{escape(rest)}</small></td>" if bracket else "</td>")

    head = "".join(f"<th>{escape(text)}</th>" for text in grid.header)
    body = "".join("<tr>" + "".join(cell(text) for text in row) + "</tr>" for row in grid.rows)
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in grid.notes)
    table = f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f"<h3>{escape(grid.title)}</h3>{table}{notes}"


def report_page(groups: Sequence[Group], about: dict[str, Any]) -> str:
    """The whole report."""
    parts = [
        "<h1>Evaluation report</h1>",
        '<p class="lead">Every figure comes with a 95% interval that resamples images, every comparison is paired '
        "by image and corrected for the number of comparisons.</p>",
        *(grid_html(grid) for grid in overview_grids(groups)),
        *(_group_html(group) for group in groups),
        _paper_html(groups),
        f"<footer>{escape(', '.join(f'{name} {value}' for name, value in about.items()))}</footer>",
    ]
    return document_page("seewhen report", "".join(parts))


def _group_html(group: Group) -> str:
    facts = " · ".join(f"{escape(str(name))} <b>{escape(str(value))}</b>" for name, value in group.facts.items())
    told = "".join(f"<li>{escape(text)}</li>" for text in words.findings(group))
    findings = f'<ul class="findings">{told}</ul>' if told else ""
    grids = group_grids(group)
    return (
        f'<h2>{escape(group.title)}</h2><p class="facts">{facts}</p>{findings}'
        + _plots(group)
        + "".join(grid_html(grid) for grid in grids)
    )


def _plots(group: Group) -> str:
    shown = [_value_plot(group, index) for index in range(min(2, len(group.metrics)))]
    return f'<div class="pair">{"".join(shown)}</div>' if shown else ""


def _value_plot(group: Group, index: int) -> str:
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
                words.title(line.label),
                entry["value"],
                entry["low"],
                entry["high"],
                tone,
                cell.value if cell else None,
            )
        )
    arrow = {1: " (more is better)", -1: " (less is better)", 0: ""}[metric.better]
    return dot_plot(dots, metric.title + arrow, base.metrics[metric.name]["value"] if base else None)


def _paper_html(groups: Sequence[Group]) -> str:
    source = document()["source"]
    grids = "".join(grid_html(grid) for grid in paper_grids(groups))
    slips = "".join(
        f"<li>{escape(note['text'])}</li>"
        for note in document()["notes"]
        if note["kind"] in ("arithmetic", "text", "unit")
    )
    return (
        f"<h2>What the paper reports</h2><p class='facts'>{escape(source['authors'])}: {escape(source['title'])}, "
        f"{escape(source['venue'])}. {escape(source['about'])}</p>"
        f"<h3>Slips in the printed tables</h3><ul>{slips}</ul>"
        f"<details><summary>All six tables as printed, with notes and measured values</summary>{grids}</details>"
    )
