"""Numbers and comparisons as sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seewhen.methods.grammar import split
from seewhen.runs.report import Comparison, Group, Line
from seewhen.runs.stats import Difference

# Names as their authors write them: other capitals and nothing else, so that they still name the method.
_CAPITALS = {name.lower(): name for name in ("Regular", "DoLa", "FarSight", "LocoRE", "MemVR")}
_CAPITALS |= {name: name.upper() for name in ("cai", "pai", "vcd", "icd", "m3id", "sid", "opera", "vti", "ict")}
_CAPITALS |= {name: name.upper() for name in ("agla", "only")}


def counted(number: int, what: str) -> str:
    """1 picture, 2 pictures."""
    return f"{number} {what}{'s' * (number != 1)}"


def unanswered(count: int) -> str:
    """How many samples lack an answer."""
    return f"{counted(count, 'sample')} {'has' if count == 1 else 'have'} no answer"


def number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1000 else f"{value:.1f}"


def signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def title(label: str) -> str:
    """A label as tables show it, with its authors' capitals; any command takes it in this form too."""
    terms = [term.partition(":") for term in split(label, "+")]
    return "+".join(_CAPITALS.get(name, name) + colon + rest for name, colon, rest in terms)


def measured(entry: Mapping[str, Any], mark: str = "") -> str:
    """A value with its interval; `mark` goes next to the value."""
    value = number(entry["value"]) + mark
    if entry["flat"]:
        return f"{value} (no variation)"
    return f"{value} [{number(entry['low'])}, {number(entry['high'])}]"


def change(comparison: Comparison) -> str:
    """A difference with its interval and corrected p-value, for a table."""
    return change_of(comparison.difference, comparison.p_holm)


def change_of(d: Difference, p: float) -> str:
    """The same of a difference and a p-value."""
    if d.value == d.low == d.high == 0:
        return "0 (same outcomes)"
    return f"{signed(d.value)} [{signed(d.low)}, {signed(d.high)}], {p_value(p)}"


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
    told = f"{who} is not significantly different from {baseline}: {what} ({proof})."
    if d.low > 0 or d.high < 0:
        if 2 * d.changed > d.images:
            return f"{told} The interval only just leaves out zero, and the test does not confirm it."
        return f"{told} Only {d.changed} of {d.images} images count differently, too few to rule out chance."
    return f"{told} With {d.images} images the true difference may lie anywhere in that interval."


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
        prices = [c for c in line.comparisons if c.metric.price and c.against == "regular"]
        told += [sentence(line, c) for c in prices if c.verdict == "real"]
    missing = [title(name) for name in ("regular", "min-p") if group.line(name) is None]
    if missing:
        told.append(f"Not run here: {', '.join(missing)}. Without the controls a gain cannot be attributed.")
    told += [_failures(line) for line in group.lines if line.run.failures]
    told += [never_fired(line.label) for line in group.lines if silent(line.run.result or {})]
    return told


def _failures(line: Line) -> str:
    failed = line.run.failures
    left_out = "is left out" if len(failed) == 1 else "are left out"
    return f"{title(line.label)}: {unanswered(len(failed))} ({failed[0].error}) and {left_out}."


def silent(result: Mapping[str, Any]) -> bool:
    """Whether a method with a gate never opened it in the whole run."""
    return result.get("facts", {}).get("fired") == 0


def never_fired(label: str) -> str:
    return f"{title(label)} never fired: its gate stayed closed at every token, so its attention is Regular's."
