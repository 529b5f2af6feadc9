"""Numbers and comparisons as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seewhen.runs.published import Cell, method_title
from seewhen.runs.report import Comparison, Group, Line, Metric

# Names that are not in the paper's tables, as their authors spell them.
_SPELLINGS = {
    "min-p": "Regular + min-p",
    "icd": "ICD",
    "m3id": "M3ID",
    "opera": "OPERA",
    "vti": "VTI",
    "ict": "ICT",
    "agla": "AGLA",
    "locore": "LocoRE",
    "memvr": "MemVR",
}


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.1f}"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def title(label: str) -> str:
    """How a method is called in a table: the paper's spelling where it has one, else its authors'."""
    for ending, words in (("-attention", ", attention only"), ("-contrast", ", contrast only")):
        if label.endswith(ending):
            return title(label.removesuffix(ending)) + words
    name, _, rest = label.partition(" ")
    return _SPELLINGS.get(name, method_title(name)) + (f" {rest}" if rest else "")


def measured(entry: Mapping[str, Any], mark: str = "") -> str:
    """A value with its interval; `mark` goes next to the value."""
    value = number(entry["value"]) + mark
    if entry["flat"]:
        return f"{value} (no variation)"
    return f"{value} [{number(entry['low'])}, {number(entry['high'])}]"


def change(comparison: Comparison) -> str:
    """A difference with its interval and corrected p-value, for a table."""
    d = comparison.difference
    if comparison.verdict == "same":
        return "0 (same outcomes)"
    return f"{signed(d.value)} [{signed(d.low)}, {signed(d.high)}], {p_value(comparison.p_holm)}"


def sentence(line: Line, comparison: Comparison) -> str:
    """Whether a difference is real, in words."""
    d, metric = comparison.difference, comparison.metric
    who, baseline = title(line.label), title(comparison.against)
    what = f"{metric.title} {signed(d.value)} {metric.unit}"
    proof = f"95% interval {signed(d.low)} to {signed(d.high)}, {p_value(comparison.p_holm)}"
    if comparison.tests > 1:
        proof += f" after correction for {comparison.tests} comparisons"
    if comparison.verdict == "same":
        return f"{who} and {baseline} score alike on every image: {metric.title} does not move at all."
    if comparison.verdict == "real":
        direction = {1: "better than", -1: "worse than", 0: "different from"}[comparison.gain]
        return f"{who} is {direction} {baseline}: {what} ({proof}). This difference is real."
    if comparison.verdict == "unclear":
        return (
            f"{who} against {baseline}: {what} ({proof}). The interval and the corrected test do not agree; "
            "treat this as a hint, not as a finding."
        )
    told = f"{who} cannot be told apart from {baseline}: {what} ({proof})."
    if d.low > 0 or d.high < 0:
        if 2 * d.changed > d.images:
            return f"{told} The interval only just leaves out zero, and the test does not confirm it."
        return f"{told} Only {d.changed} of {d.images} images count differently, too few to rule out chance."
    return f"{told} With {d.images} images the true difference may lie anywhere in that interval."


def against_published(entry: Mapping[str, Any], cell: Cell, metric: Metric) -> str:
    """Whether the paper's figure agrees with the measured interval."""
    inside = entry["low"] <= cell.value <= entry["high"]
    gap = entry["value"] - cell.value
    told = "lies inside" if inside else "lies outside"
    text = (
        f"{metric.title} {number(entry['value'])} measured, {number(cell.value)} published "
        f"({signed(gap)}): the published figure {told} the measured interval."
    )
    return text + "".join(f" {note.text}" for note in cell.notes)


def findings(group: Group) -> list[str]:
    """The few sentences a reader should take home, first metric first."""
    if not group.metrics:
        return []
    told = []
    for line in group.lines:
        first = [c for c in line.comparisons if c.metric == group.metrics[0]]
        won = any(c.against == "regular" and c.verdict == "real" for c in first)
        # Against min-p only where there is something to explain: is it more than the plausibility cut?
        told += [sentence(line, c) for c in first if c.against == "regular" or won]
        told += [sentence(line, c) for c in line.comparisons if _tells_the_price(group, c)]
    missing = [title(name) for name in ("regular", "min-p") if group.line(name) is None]
    if missing:
        told.append(f"Not run here: {', '.join(missing)}. Without the controls a gain cannot be attributed.")
    told += [_failures(line) for line in group.lines if line.run.failures]
    told += [never_fired(line.label) for line in group.lines if silent(line.run.result or {})]
    return told


def _failures(line: Line) -> str:
    failed = line.run.failures
    return f"{title(line.label)}: {len(failed)} samples have no answer ({failed[0].error}) and are left out."


def silent(result: Mapping[str, Any]) -> bool:
    """Whether a method with a gate never opened it in the whole run."""
    return result.get("facts", {}).get("fired") == 0


def never_fired(label: str) -> str:
    return f"{title(label)} never fired: its gate stayed closed at every token, so its attention is Regular's."


def _tells_the_price(group: Group, comparison: Comparison) -> bool:
    """CHAIR falls by saying less: a real change of recall belongs next to it."""
    asked = (group.benchmark, comparison.metric.name, comparison.against)
    return asked == ("chair", "recall", "regular") and comparison.verdict == "real"
