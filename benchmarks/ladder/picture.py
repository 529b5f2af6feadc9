"""The map: rungs by methods, coloured by what the method does to the share of invented objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.rungs import described

# What kind of method stands in which columns.
KINDS = {
    "no method": ("cooler", "min-p"),
    "contrasts": ("vcd", "icd", "m3id", "dola"),
    "attention": ("pai", "only", "opera"),
    "CAI and its parts": ("tilt", "tilt exponential", "contrast", "cai", "cai reference", "cai paper"),
    "asks": ("confirm asking", "confirm"),
}
LIMIT = 12.0  # points, at which colours end
Entry = Mapping[str, Any]


def _effect(entry: Entry, name: str, way: str) -> Sequence[float] | None:
    return entry["effects"].get(name, {}).get(way, {}).get("chair_i")


def draw(entries: Sequence[Entry], path: Path, way: str = "sampled") -> None:
    """One row per rung, those with most to recover on top; bold where the interval excludes zero."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = {
        kind: own
        for kind, names in KINDS.items()
        if (own := [name for name in names if any(_effect(e, name, way) for e in entries)])
    }
    columns = [name for own in kinds.values() for name in own]

    def gain(entry: Entry) -> float:
        return float(entry["ceiling"][way].get("recoverable", [0.0])[0])

    rows = sorted(entries, key=gain, reverse=True)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(13, 0.38 * len(rows) + 2.6), width_ratios=(1, 5), sharey=True, layout="constrained"
    )
    values = np.full((len(rows), len(columns)), np.nan)
    for y, entry in enumerate(rows):
        for x, name in enumerate(columns):
            if found := _effect(entry, name, way):
                values[y, x] = found[0]
                _write(right, x, y, found)
        if shown := entry["ceiling"][way].get("recoverable"):
            left.barh(y, shown[0], color="0.6")
            left.plot(shown[1:], (y, y), color="0.2", linewidth=1)
    right.imshow(values, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
    right.set_facecolor("0.9")
    right.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
    at = 0
    for kind, own in kinds.items():
        right.text(at + (len(own) - 1) / 2, -0.7, kind, ha="center", va="bottom", fontsize=10, style="italic")
        at += len(own)
        right.axvline(at - 0.5, color="white", linewidth=4)
    left.set_yticks(range(len(rows)), [described(str(entry["name"])) for entry in rows])
    left.set_xlabel("recoverable: what it\nknows better than it\nsays, points")
    left.axvline(0, color="black", linewidth=0.6)
    legend = "Blue: invents less, red: more; bold: surely not zero; grey: not measured"
    figure.suptitle(f"Change of CHAIR_i in points, {way}. {legend}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _write(axes: Any, x: int, y: int, found: Sequence[float]) -> None:
    value, low, high = found
    sure = low > 0 or high < 0
    dark = "white" if abs(value) > 0.6 * LIMIT else "black"
    text = f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
    weight = "bold" if sure else "normal"
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, weight=weight, color=dark if sure else "0.35")
