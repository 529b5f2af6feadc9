"""The two ablation plots, from what `seewhen sweep` wrote: start layer by threshold, and contrast."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict

from seewhen.errors import InvalidInput
from seewhen.reading import MIB, Finite, check_form, expecting, read_json
from seewhen.showing.figures.style import (
    BLACK,
    COLUMN,
    MARKERS,
    SERIES,
    Drawing,
    legend_above,
    new_figure,
    paper_style,
    plain,
)

_NAMES = {"start_layer": "start layer lₛ", "threshold": "γ", "contrast": "contrast λ"}


class _Entry(TypedDict):
    value: Finite
    low: Finite
    high: Finite


class _Point(TypedDict):
    values: dict[str, Any]
    metrics: dict[str, _Entry]


class _Sweep(TypedDict):
    """What the figures read of a sweep."""

    format: Literal[1]
    method: str
    metric: str
    tuned_on: str
    grid: dict[str, list[Any]]
    best: dict[str, Any]
    points: list[_Point]


def read_sweep(path: str | Path) -> dict[str, Any]:
    """A `sweep.json`, or the folder that holds it."""
    path = Path(path)
    path = path / "sweep.json" if path.is_dir() else path
    found = read_json(path, "Make one with `seewhen sweep`.", largest=64 * MIB)
    check_form(_Sweep, found, path, "Make it again with `seewhen sweep`.")
    return found


def ablation_gate(sweep: Mapping[str, Any]) -> Drawing:
    """The metric by start layer, one curve for each threshold."""
    return _ablation(sweep, "ablation-gate", "start_layer", "threshold")


def ablation_contrast(sweep: Mapping[str, Any]) -> Drawing:
    """The metric by contrast coefficient; the other fields at their best."""
    return _ablation(sweep, "ablation-contrast", "contrast", None)


def _below(point: Mapping[str, Any]) -> float:
    return float(point["value"] - point["low"])


def _above(point: Mapping[str, Any]) -> float:
    return float(point["high"] - point["value"])


def _ablation(sweep: Mapping[str, Any], name: str, field: str, by: str | None) -> Drawing:
    if len(sweep["grid"].get(field, ())) < 2:
        swept = ", ".join(f for f, values in sweep["grid"].items() if len(values) > 1) or "none"
        symbol = {"start_layer": "l_s=0.5,0.7,0.85", "contrast": "lambda=1,2,3"}[field]
        raise InvalidInput(f"The sweep does not vary {field} (it varies {swept}).", f"Use --grid {symbol}.")
    if by is not None and by not in sweep["grid"]:
        by = None
    with expecting("The sweep", "Make it again with `seewhen sweep`."):
        curves = _curves(sweep, field, by)
    title = str(sweep.get("metric", "")).replace("_", " ")
    with paper_style():
        figure = new_figure(COLUMN, 2.4)
        axes = figure.subplots()
        ticks = sorted({point["x"] for points in curves.values() for point in points})
        gap = min(b - a for a, b in pairwise(ticks)) if len(ticks) > 1 else 1.0
        best = None
        for number, (label, points) in enumerate(curves.items()):
            # Curves stand a little apart, so that their intervals can be told from one another.
            shift = (number - (len(curves) - 1) / 2) * 0.09 * gap
            x = [point["x"] + shift for point in points]
            y = [point["value"] for point in points]
            # An interval need not hold its value, and has no other side then.
            spread = [[max(0.0, side(p)) for p in points] for side in (_below, _above)]
            color, marker = SERIES[number % len(SERIES)], MARKERS[number % len(MARKERS)]
            axes.errorbar(x, y, yerr=spread, color=color, marker=marker, capsize=1.5, elinewidth=0.7, label=label)
            best = next(((a, p["value"]) for a, p in zip(x, points, strict=True) if p["best"]), best)
        if best is not None:
            axes.plot(*best, ls="", marker="o", ms=9, mfc="none", mec=BLACK, mew=1.0, label="chosen")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xlabel(_NAMES.get(field, field))
        axes.set_ylabel(f"{title}, validation")
        legend_above(figure, axes, min(4, len(curves) + 1))
    data = {
        "figure": name,
        "method": sweep["method"],
        "metric": sweep["metric"],
        "images": sweep["tuned_on"],
        "field": field,
        "by": by,
        "held": {f: sweep["best"][f] for f in sweep["grid"] if f not in (field, by)},
        "best": sweep["best"],
        "interval": "95 %, bootstrap over images",
        "curves": curves,
    }
    return Drawing(figure, plain(data))


def _curves(sweep: Mapping[str, Any], field: str, by: str | None) -> dict[str, list[dict[str, Any]]]:
    """Points (x, value, low, high) by curve; fields that are not drawn are held at the best setting."""
    held = [f for f in sweep["grid"] if f not in (field, by)]
    curves: dict[str, list[dict[str, Any]]] = {}
    for point in sweep["points"]:
        values = point["values"]
        if any(values[f] != sweep["best"][f] for f in held) or not isinstance(values[field], int | float):
            continue
        entry = point["metrics"][sweep["metric"]]
        label = sweep["method"] if by is None else f"{_NAMES.get(by, by)} = {_shown(values[by])}"
        curves.setdefault(label, []).append(
            {
                "x": float(values[field]),
                **{part: float(entry[part]) for part in ("value", "low", "high")},
                "best": values == sweep["best"],
            }
        )
    return {label: sorted(points, key=lambda p: p["x"]) for label, points in curves.items()}


def _shown(value: Any) -> str:
    return "adaptive" if value is None else f"{value:g}" if isinstance(value, int | float) else str(value)
