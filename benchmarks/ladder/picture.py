"""The map: rungs by methods, coloured by what the method does to the share of invented objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

COLUMNS = (
    "min-p", "cooler", "vcd", "icd", "m3id", "dola", "pai", "only", "tilt", "tilt exponential",
    "contrast", "cai", "confirm asking", "confirm",
)  # fmt: skip
LIMIT = 15.0  # points, at which colours end


def draw(entries: Sequence[Mapping[str, Any]], path: Path, way: str = "sampled") -> None:
    """One row per rung, those with most to recover on top; a dot where the interval excludes zero."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = [name for name in COLUMNS if any(way in e["effects"].get(name, {}) for e in entries)]

    def gain(entry: Mapping[str, Any]) -> float:
        return float(entry["ceiling"][way].get("recoverable", [0.0])[0])

    rows = sorted(entries, key=gain, reverse=True)
    values = np.full((len(rows), len(columns)), np.nan)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(12, 0.36 * len(rows) + 2.4), width_ratios=(1, 4), sharey=True, layout="constrained"
    )
    for y, entry in enumerate(rows):
        for x, name in enumerate(columns):
            found = entry["effects"].get(name, {}).get(way, {}).get("chair_i")
            if found:
                values[y, x] = found[0]
                if found[1] > 0 or found[2] < 0:
                    right.plot(x, y, ".", color="black", markersize=4)
        shown = entry["ceiling"][way].get("recoverable")
        if shown:
            left.barh(y, shown[0], color="0.6")
            left.plot(shown[1:], (y, y), color="0.2", linewidth=1)
    drawn = right.imshow(values, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
    right.set_facecolor("0.93")
    right.set_xticks(range(len(columns)), columns, rotation=40, ha="right")
    left.set_yticks(range(len(rows)), [str(entry["name"]) for entry in rows])
    left.set_xlabel("recoverable, points\n(what it knows better\nthan it says)")
    left.axvline(0, color="black", linewidth=0.6)
    bar = figure.colorbar(drawn, ax=right, extend="both")
    bar.set_label(f"change of CHAIR_i, points ({way}): blue invents less")
    figure.suptitle("When does it help? Each row is a model, each column a method; a dot: surely not zero")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
