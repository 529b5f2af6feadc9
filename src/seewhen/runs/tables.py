"""Tables of a report as plain grids of text, and all of it as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from seewhen.benchmarks.base import Metric
from seewhen.runs import wording
from seewhen.runs.cutting import SHOWN, Control
from seewhen.runs.grid import Grid
from seewhen.runs.published import Cell, cells, document, method_title
from seewhen.runs.report import Group, Line

_ARROWS = {1: " ↑", -1: " ↓", 0: ""}
_BETTER, _WORSE = "▲", "▼"


def _mark(line: Line, metric: Metric) -> str:
    """Shows a real difference from regular."""
    for comparison in line.comparisons:
        if comparison.against == "regular" and comparison.metric == metric and comparison.verdict == "real":
            return {1: f" {_BETTER}", -1: f" {_WORSE}", 0: ""}[comparison.gain]
    return ""


def score_grid(group: Group, metrics: Sequence[Metric], title: str) -> Grid:
    """Values with intervals; triangles mark real differences from regular."""
    rows, links = [], []
    parts = ["", *(m.name.rpartition("/")[0] for m in metrics)]
    for line in group.lines:
        shown = [wording.measured(line.metrics[m.name], _mark(line, m)) for m in metrics]
        rows.append((wording.title(line.label), *shown))
        links.append(tuple(group.link(line.label, part) for part in parts))
    images = wording.counted(group.facts["images"], "image")
    notes = [f"Brackets: 95% interval, bootstrap over {images}."]
    if group.line("regular") and len(group.lines) > 1:  # else no mark says nothing
        notes[0] += (
            f" {_BETTER} {_WORSE}: better or worse than Regular, a real difference after Holm's correction. "
            "No mark: no significant difference."
        )
    if group.facts["seeds"] > 1:
        spread = max(line.metrics[metrics[0].name]["seed_sd"] or 0.0 for line in group.lines)
        notes.append(
            f"Means over {group.facts['seeds']} seeds; a single seed's {metrics[0].title} has a standard "
            f"deviation of up to {spread:.2f} around them."
        )
    header = ("Method", *(m.title + _ARROWS[m.better] for m in metrics))
    return Grid(title, header, tuple(rows), tuple(notes), tuple(links))


_WIDE = 8  # more methods than this stand in rows


def overview_grids(groups: Sequence[Group]) -> list[Grid]:
    """How far each method is from regular on each group's first metric: a line per group, or per method where
    these are many."""
    told = [group for group in groups if group.metrics and group.line("regular") and len(group.lines) > 1]
    labels = list(dict.fromkeys(line.label for group in told for line in group.lines if line.label != "regular"))
    if len(told) < 2 or not labels:
        return []
    changes = [_changes(group) for group in told]
    metrics = [group.metrics[0].title + _ARROWS[group.metrics[0].better] for group in told]
    note = (
        f"Difference from Regular. {_BETTER} better, {_WORSE} worse, both real; "
        "no mark: no significant difference."
    )
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    if len(labels) > _WIDE:
        header = ("Method", *(f"{group.title}: {metric}" for group, metric in zip(told, metrics, strict=True)))
        rows = [(wording.title(label), *(found.get(label, "—") for found in changes)) for label in labels]
        links = [("", *(_place(group, label) for group in told)) for label in labels]
    else:
        header = ("Setting", "Metric", *(wording.title(label) for label in labels))
        rows = [
            (group.title, metric, *(found.get(label, "—") for label in labels))
            for group, metric, found in zip(told, metrics, changes, strict=True)
        ]
        links = [("", "", *(_place(group, label) for label in labels)) for group in told]
    return [Grid("In short", header, tuple(rows), (note,), tuple(links))]


def _place(group: Group, label: str) -> str:
    return group.link(label) if group.line(label) else ""


def _changes(group: Group) -> dict[str, str]:
    metric = group.metrics[0]
    return {
        line.label: wording.signed(c.difference.value) + _mark(line, metric)
        for line in group.lines
        for c in line.comparisons
        if c.metric == metric and c.against == "regular"
    }


def difference_grid(group: Group) -> Grid | None:
    """Paired differences of the first metrics from both baselines."""
    shown = group.metrics[:3]
    rows = []
    for line in group.lines:
        for against in dict.fromkeys(c.against for c in line.comparisons):
            by_metric = {c.metric.name: c for c in line.comparisons if c.against == against}
            changes = [wording.change(by_metric[m.name]) for m in shown]
            pair = f"{wording.title(line.label)} − {wording.title(against)}"
            rows.append((pair, *changes, *_questions(line, against)))
    if not rows:
        return None
    header = ("Pair", *(m.title for m in shown), f"{group.benchmark.answers_are.title()} won : lost", "McNemar")
    notes = (
        "Paired by image. p-values: methods swapped on random images, two-sided, Holm-corrected per column.",
        "Won : lost counts single samples right in one run only (first seed); McNemar's test is clustered by "
        "image and not corrected.",
    )
    return Grid("Paired differences", header, tuple(rows), notes)


def _questions(line: Line, against: str) -> tuple[str, str]:
    if line.questions is None or line.questions[0] != against:
        return "—", "—"
    _, wins, losses, p = line.questions
    return f"{wins} : {losses}", wording.p_value(p)


def cut_grid(group: Group) -> Grid | None:
    """Methods that shorten captions beside the regular captions cut off."""
    if group.shorter is None:
        return None
    titles = {metric.name: metric.title for metric in group.metrics}
    rows = [
        (
            f"Regular, cut off after {wording.counted(count, 'sentence')}",
            *(wording.number(found[name]) for name in SHOWN),
        )
        for count, found in group.shorter.cuts.items()
    ]
    for one in group.shorter.methods:
        pair = f"{wording.title(one.label)} − Regular cut off after {wording.counted(one.sentences, 'sentence')}"
        rows.append((pair, *(wording.change_of(one.differences[name], one.differences[name].p) for name in SHOWN)))
    notes = (
        "CHAIR falls as captions get shorter. Each method with fewer words than Regular is set beside Regular's "
        "captions cut off after as many sentences as bring their recall nearest to its own; paired by image, "
        "Holm-corrected per column.",
    )
    return Grid("Beside captions cut off", ("Captions", *(titles[name] for name in SHOWN)), tuple(rows), notes)


def published_grid(group: Group) -> Grid | None:
    """Measured next to published, where the paper has the same setting."""
    rows, notes = [], []
    for line in group.lines:
        for metric in (*group.metrics, *group.detail):
            cell = group.published.get((line.label, metric.name))
            if cell is None:
                continue
            entry = line.metrics[metric.name]
            inside = "inside" if entry["low"] <= cell.value <= entry["high"] else "outside"
            rows.append(
                (
                    wording.title(line.label),
                    metric.title,
                    wording.measured(entry),
                    wording.number(cell.value),
                    wording.signed(entry["value"] - cell.value),
                    inside,
                    f"Table {cell.number}, row {cell.row + 1}, column {cell.column + 1}",
                )
            )
            notes += [note.text for note in cell.notes]
    if not rows:
        return None
    header = ("Method", "Metric", "Measured", "Published", "Difference", "Interval", "Where")
    return Grid("Measured next to published", header, tuple(rows), tuple(dict.fromkeys(notes)))


def speed_grid(group: Group) -> Grid | None:
    """Throughput as measured during the runs, relative to regular."""
    base = group.line("regular")
    reference = base.speed if base else None
    asks = any("asked" in (line.run.result or {}).get("facts", {}) for line in group.lines)
    rows = []
    for line in group.lines:
        speed = line.speed
        if speed is None:
            continue
        ratio = f"×{speed['ms_per_token'] / reference['ms_per_token']:.2f}" if reference else "—"
        facts = (line.run.result or {})["facts"]
        fired = facts.get("fired")
        rows.append(
            (
                wording.title(line.label),
                f"{speed['samples_per_second']:.2f}",
                f"{speed['ms_per_token']:.2f}",
                ratio,
                "—" if fired is None else f"{100 * fired:.0f}%",
                *(_asked(facts) if asks else ()),
                str(line.run.environment.get("device_name", "")),
            )
        )
    if not rows:
        return None
    header = (
        "Method",
        "Samples/s",
        "ms/token",
        "to Regular",
        "Tokens tilted",
        *(_ASKED if asks else ()),
        "Device",
    )
    notes = ["Whole runs in batches, start-up excluded: not the latency of a single answer."]
    if asks:
        notes.append(
            "Asked, taken back: objects and sentences per answer. Tokens are those of the final answer. "
            "Questions and drafts count in ms/token, not in steps."
        )
    return Grid("Speed", header, tuple(rows), tuple(notes))


_ASKED = ("Asked", "Taken back", "Steps/token")


def _asked(facts: Mapping[str, float]) -> tuple[str, ...]:
    """What a method that asks cost beside the tokens of its final answer."""
    if "asked" not in facts:
        return ("—",) * len(_ASKED)
    return (f"{facts['asked']:.1f}", f"{facts['taken_back']:.2f}", f"{facts['steps_per_token']:.2f}")


def group_grids(group: Group) -> list[Grid]:
    """All tables of one group."""
    grids = [score_grid(group, group.metrics or group.detail, "Scores")]
    if group.detail and group.metrics:
        grids.append(score_grid(group, group.detail, "By part"))
    return grids + [
        g for g in (difference_grid(group), cut_grid(group), published_grid(group), speed_grid(group)) if g
    ]


def paper_grids(groups: Sequence[Group]) -> list[Grid]:
    """The paper's tables as printed; where a run measured the same cell, its value stands beside it."""
    ours: dict[tuple[str, int, int], str] = {}
    for group in groups:
        for (label, metric), cell in group.published.items():
            line = group.line(label)
            assert line is not None
            ours[cell.table, cell.row, cell.column] = wording.measured(line.metrics[metric])
    return [_paper_grid(table, ours) for table in document()["tables"]]


def _paper_grid(table: Mapping[str, Any], ours: Mapping[tuple[str, int, int], str]) -> Grid:
    notes: dict[str, int] = {}
    here = {(cell.row, cell.column): cell for cell in cells() if cell.table == table["id"]}
    rows = []
    for r, row in enumerate(table["rows"]):
        name = [str(v) for k, v in row.items() if k not in ("values", "printed_change", "method")]
        line = [" ".join([*name, method_title(row["method"])])]
        for c in range(len(table["columns"])):
            line.append(_paper_cell(here.get((r, c)), ours.get((table["id"], r, c)), notes))
        rows.append(tuple(line))
    header = ("", *(" ".join(str(v) for v in column.values()) for column in table["columns"]))
    numbered = tuple(f"({number}) {text}" for text, number in notes.items())
    return Grid(f"Paper, Table {table['number']}: {table['title']}", header, tuple(rows), numbered)


def _paper_cell(cell: Cell | None, mine: str | None, notes: dict[str, int]) -> str:
    if cell is None:
        return "—"
    marks = "".join(f" ({notes.setdefault(note.text, len(notes) + 1)})" for note in cell.notes)
    return f"{cell.value:g}{marks}" + (f" | measured {mine}" if mine else "")


def to_plain(groups: Sequence[Group]) -> dict[str, Any]:
    """Everything in the report as data for JSON."""
    told = any(group.published for group in groups)
    return {
        "format": 1,
        "groups": [
            {
                "title": group.title,
                "facts": dict(group.facts),
                "findings": wording.findings(group),
                "methods": [_plain_line(line, group) for line in group.lines],
                **({"cut_off": _plain_control(group.shorter)} if group.shorter else {}),
            }
            for group in groups
        ],
        **({"paper": {"source": document()["source"], "notes": document()["notes"]}} if told else {}),
    }


def _plain_control(control: Control) -> dict[str, Any]:
    return {
        "regular": {str(count): dict(found) for count, found in control.cuts.items()},
        "methods": {
            one.label: {
                "sentences": one.sentences,
                "differences": {name: asdict(difference) for name, difference in one.differences.items()},
            }
            for one in control.methods
        },
    }


def _plain_line(line: Line, group: Group) -> dict[str, Any]:
    return {
        "label": line.label,
        "run": line.run.path.name,
        "method": line.run.config["method"],
        "versions": line.run.config["versions"],
        "metrics": {name: dict(entry) for name, entry in line.metrics.items()},
        "published": {
            metric: {"value": cell.value, "where": cell.provenance, "notes": [asdict(n) for n in cell.notes]}
            for (label, metric), cell in group.published.items()
            if label == line.label
        },
        "comparisons": [
            {
                "against": c.against,
                "metric": c.metric.name,
                **asdict(c.difference),
                "p_holm": c.p_holm,
                "comparisons_corrected_for": c.tests,
                "images_left_out": c.images_left_out,
                "verdict": c.verdict,
                "better": c.gain > 0 if c.verdict == "real" and c.gain else None,
            }
            for c in line.comparisons
        ],
        "speed": line.speed,
        "failures": len(line.run.failures),
    }
