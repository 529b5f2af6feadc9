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
    "asks": ("confirm asking", "confirm", "confirm chosen", "confirm 2 drafts", "confirm 4 drafts"),
}
# The picture for a reader in a hurry: one column for each kind of help, by a name that says what it is.
SHOWN = {
    "cooler": "cooler\nsampling",
    "min-p": "cut\n(min-p)",
    "vcd": "VCD",
    "pai": "PAI",
    "opera": "OPERA",
    "tilt": "CAI's\ntilt",
    "contrast": "CAI's\ncontrast",
    "confirm chosen": "confirm:\nask it",
    "confirm 4 drafts": "confirm,\n4 drafts",
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
        1, 2, figsize=(17, 0.38 * len(rows) + 2.6), width_ratios=(1, 6), sharey=True, layout="constrained"
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


def overview(entries: Sequence[Entry], path: Path) -> None:
    """Greedy and sampled side by side, few columns, whole points: to be understood in ten seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    rows = sorted(entries, key=lambda entry: -float(entry["regular"]["greedy"]["chair_i"][0]))
    panels = {}
    for way in ("greedy", "sampled"):
        names = [name for name in SHOWN if any(_effect(entry, name, way) for entry in rows)]
        panels[way] = [name for name in names if way == "sampled" or name not in ("cooler", "min-p")]
    figure, axes = plt.subplots(
        1, 3, figsize=(17, 0.4 * len(rows) + 3), sharey=True, layout="constrained",
        width_ratios=(3, len(panels["greedy"]), len(panels["sampled"])),
    )  # fmt: skip
    bars = [float(entry["regular"]["greedy"]["chair_i"][0]) for entry in rows]
    axes[0].barh(range(len(rows)), bars, color="0.65")
    for y, value in enumerate(bars):
        axes[0].text(value + 1, y, f"{value:.0f}", va="center", fontsize=9)
    axes[0].set_xlim(0, 100)
    axes[0].set_xticks([])
    axes[0].spines[["top", "right", "bottom"]].set_visible(False)
    axes[0].set_yticks(range(len(rows)), [described(str(entry["name"])) for entry in rows], fontsize=10)
    axes[0].set_title("of 100 objects it names\n(greedy), so many\nare not there", fontsize=11)
    titles = {"greedy": "always the likeliest word (greedy)", "sampled": "words drawn by chance (sampled)"}
    for panel, (way, names) in zip(axes[1:], panels.items(), strict=True):
        values = np.full((len(rows), len(names)), np.nan)
        for y, entry in enumerate(rows):
            for x, name in enumerate(names):
                if found := _effect(entry, name, way):
                    values[y, x] = found[0]
                    _write(panel, x, y, found, digits=0)
        panel.imshow(values, cmap="RdBu_r", vmin=-LIMIT, vmax=LIMIT, aspect="auto")
        panel.set_facecolor("0.78")
        panel.set_xticks(range(len(names)), [SHOWN[name] for name in names], fontsize=9.5)
        panel.xaxis.tick_top()
        panel.tick_params(length=0)
        panel.set_title(titles[way], fontsize=12, weight="bold", pad=8)
        for x in range(len(names) + 1):
            panel.axvline(x - 0.5, color="white", linewidth=2)
        for y in range(len(rows) + 1):
            panel.axhline(y - 0.5, color="white", linewidth=2)
    colours = plt.get_cmap("RdBu_r")
    legend = [Patch(color=colours(0.12), label="invents less"), Patch(color=colours(0.88), label="invents more")]
    legend += [Patch(color=colours(0.5), label="no change"), Patch(color="0.78", label="not measured")]
    figure.legend(handles=legend, loc="outside lower center", ncols=4, fontsize=11, frameon=False)
    figure.suptitle("Which method makes which model invent less? Each row is a small model made in another way.\n"
                    "Numbers: change of the invented share (CHAIR_i) in points, bold where it is surely not zero",
                    fontsize=13)  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _write(axes: Any, x: int, y: int, found: Sequence[float], digits: int = 1) -> None:
    value, low, high = found
    sure = low > 0 or high < 0
    dark = "white" if abs(value) > 0.6 * LIMIT else "black"
    text = f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
    text = "0" if text in ("+0", "\N{MINUS SIGN}0") else text
    weight = "bold" if sure else "normal"
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, weight=weight, color=dark if sure else "0.35")
