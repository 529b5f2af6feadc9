"""Plots as SVG text: no plotting library, no fonts, colours follow the page's theme."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Of the names beside a plot, at 12 pixels. Fonts differ; no common one is wider on average.
_CHARACTER = 7.0
_LINE = 15
_LONGEST = 44


@dataclass(frozen=True)
class Dot:
    """One row of a dot plot: a value with its interval; `tone` is a class name of the page."""

    name: str
    value: float
    low: float
    high: float
    tone: str = "plain"  # plain, better, worse, base
    published: float | None = None


def ticks(low: float, high: float) -> list[float]:
    """About five round numbers that cover a range."""
    span = high - low if high > low else 1.0
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def name_lines(name: str) -> list[str]:
    """A name in lines short enough to stand beside a plot."""
    return textwrap.wrap(name, _LONGEST) or [""]


def _room(names: Iterable[str]) -> float:
    """The width of the widest line."""
    return _CHARACTER * max((len(line) for name in names for line in name_lines(name)), default=0)


def _name(name: str, x: float, y: float, anchor: str) -> str:
    """A name beside a plot, its lines around the height `y`."""
    lines = name_lines(name)
    first = y + 4 - _LINE * (len(lines) - 1) / 2
    spans = "".join(
        f'<tspan x="{x:g}" y="{first + _LINE * k:g}">{escape(line)}</tspan>' for k, line in enumerate(lines)
    )
    return f'<text class="name" text-anchor="{anchor}">{spans}</text>'


def dot_plot(dots: Sequence[Dot], label: str, zero: float | None = None) -> str:
    """Values with intervals, one row each; a vertical line at `zero` (a baseline, or no difference)."""
    left, width, top, bottom = 20 + max(_room(dot.name for dot in dots), 120), 720, 8, 40
    rows = [11 + _LINE * len(name_lines(dot.name)) for dot in dots]
    values = [v for d in dots for v in (d.low, d.high, d.value)]
    values += [d.published for d in dots if d.published is not None] + ([zero] if zero is not None else [])
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 1.0
    low, high = low - pad, high + pad
    height = top + sum(rows) + bottom
    plot = width - left - 16

    def x(value: float) -> float:
        return round(left + plot * (value - low) / (high - low), 1)

    base = top + sum(rows)
    out = [_open(width, height, label)]
    for tick in ticks(low, high):
        out.append(f'<line class="grid" x1="{x(tick)}" y1="{top}" x2="{x(tick)}" y2="{base}"/>')
        out.append(f'<text class="tick" x="{x(tick)}" y="{base + 15}" text-anchor="middle">{tick:g}</text>')
    out.append(
        f'<text class="axis" x="{left + plot / 2:.0f}" y="{height - 6}" text-anchor="middle">'
        f"{escape(label)}</text>"
    )
    if zero is not None:
        out.append(f'<line class="zero" x1="{x(zero)}" y1="{top}" x2="{x(zero)}" y2="{base}"/>')
    for i, dot in enumerate(dots):
        y = top + sum(rows[:i]) + rows[i] / 2
        out.append(_name(dot.name, left - 10, y, "end"))
        out.append(
            f'<g class="{escape(dot.tone)}"><title>{escape(_describe(dot))}</title>'
            f'<line class="bar" x1="{x(dot.low)}" y1="{y}" x2="{x(dot.high)}" y2="{y}"/>'
            f'<circle class="dot" cx="{x(dot.value)}" cy="{y}" r="5"/></g>'
        )
        if dot.published is not None:
            p = x(dot.published)
            points = f"{p},{y - 6} {p + 6},{y} {p},{y + 6} {p - 6},{y}"
            out.append(f'<polygon class="published" points="{points}"/>')
    return "".join([*out, "</svg>"])


def _describe(dot: Dot) -> str:
    text = f"{dot.name}: {dot.value:.2f}, 95% interval {dot.low:.2f} to {dot.high:.2f}"
    return text + (f", published {dot.published:.2f}" if dot.published is not None else "")


def line_plot(
    series: Mapping[str, Sequence[tuple[float, float, float, float]]],
    x_label: str,
    y_label: str,
    mark: tuple[str, float] | None = None,
) -> str:
    """Curves of (x, value, low, high) with their intervals; `mark` circles the chosen point of a curve."""
    left, width, top, bottom = 62, 720, 12, 46
    right = 50 + max(_room(series), 100)
    entries = [5 + _LINE * len(name_lines(name)) for name in series]
    height = max(360, top + sum(entries) + bottom)
    points = [p for curve in series.values() for p in curve]
    xs = sorted({p[0] for p in points})
    low, high = min(p[2] for p in points), max(p[3] for p in points)
    pad = 0.06 * (high - low) or 1.0
    low, high = low - pad, high + pad
    first, last = xs[0], xs[-1]

    def x(value: float) -> float:
        share = (value - first) / (last - first) if last > first else 0.5
        return round(left + 14 + (width - left - right - 28) * share, 1)

    def y(value: float) -> float:
        return round(top + (height - top - bottom) * (1 - (value - low) / (high - low)), 1)

    out = [_open(width, height, f"{y_label} over {x_label}")]
    for tick in ticks(low, high):
        out.append(f'<line class="grid" x1="{left}" y1="{y(tick)}" x2="{width - right}" y2="{y(tick)}"/>')
        out.append(f'<text class="tick" x="{left - 8}" y="{y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    for value in xs if len(xs) <= 9 else ticks(first, last):
        out.append(
            f'<text class="tick" x="{x(value)}" y="{height - bottom + 16}" text-anchor="middle">{value:g}</text>'
        )
    middle = left + (width - left - right) / 2
    out.append(
        f'<text class="axis" x="{middle}" y="{height - 8}" text-anchor="middle">{escape(x_label)}</text>'
        f'<text class="axis" x="14" y="{height / 2 - 16}" text-anchor="middle" '
        f'transform="rotate(-90 14 {height / 2 - 16})">{escape(y_label)}</text>'
    )
    for k, (name, curve) in enumerate(series.items()):
        tone = f"line{k % 6}"
        band = " ".join(f"{x(p[0])},{y(p[3])}" for p in curve)
        band += " " + " ".join(f"{x(p[0])},{y(p[2])}" for p in reversed(curve))
        path = " ".join(f"{x(p[0])},{y(p[1])}" for p in curve)
        out.append(f'<g class="{tone}"><polygon class="band" points="{band}"/>')
        out.append(f'<polyline class="curve" points="{path}"/>')
        for p in curve:
            chosen = mark is not None and mark == (name, p[0])
            note = f"{name}, {x_label} {p[0]:g}: {p[1]:.2f}, 95% interval {p[2]:.2f} to {p[3]:.2f}"
            out.append(
                f'<circle class="dot" cx="{x(p[0])}" cy="{y(p[1])}" r="4"><title>{escape(note)}</title></circle>'
            )
            if chosen:
                out.append(f'<circle class="chosen" cx="{x(p[0])}" cy="{y(p[1])}" r="9"/>')
        place = top + 4 + sum(entries[:k]) + entries[k] / 2
        out.append(
            f'<line class="curve" x1="{width - right + 16}" y1="{place}" x2="{width - right + 36}" y2="{place}"/>'
            f"{_name(name, width - right + 42, place, 'start')}</g>"
        )
    return "".join([*out, "</svg>"])


def _open(width: float, height: float, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}">'
    )
