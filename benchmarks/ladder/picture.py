"""The map: rungs by methods, coloured by what the method does to the share of invented objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.rungs import described, family

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
    "cooler": "cooler",
    "min-p": "cut\n(min-p)",
    "vcd": "VCD",
    "pai": "PAI",
    "opera": "OPERA",
    "tilt": "CAI's\ntilt",
    "contrast": "CAI's\ncontrast",
    "confirm 4 drafts": "confirm\n(asks)",
}
FAMILIES = ("Hardly trained on pictures", "Long enough to see", "Taught to embellish", "As shipped")
# What it shows of each way of decoding, which the tests hold to the results.
FOUND = {
    "greedy": "Always the likeliest word:\nfew published methods help",
    "sampled": "Words drawn by chance:\nnearly every method helps",
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
    legend = "Blue: invents less, red: more; bold: 95 % interval without zero; grey: not measured"
    figure.suptitle(f"Change of CHAIR_i in points, {way}. {legend}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def overview(entries: Sequence[Entry], path: Path) -> None:
    """Greedy and sampled side by side, few columns, whole points: to be understood in ten seconds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    own = {name: _worst([each for each in entries if family(str(each["name"])) == name]) for name in FAMILIES}
    rows: list[str | Entry] = [row for name, some in own.items() if some for row in (name, *some)]
    panels = {}
    for way in FOUND:
        names = [name for name in SHOWN if any(_effect(entry, name, way) for entry in entries)]
        panels[way] = [name for name in names if way == "sampled" or name not in ("cooler", "min-p")]
    figure, axes = plt.subplots(
        1, 3, figsize=(10, 0.265 * len(rows) + 1.9), sharey=True, layout="constrained",
        width_ratios=(1.6, len(panels["greedy"]), len(panels["sampled"])),
    )  # fmt: skip
    colours, norm = plt.get_cmap("RdBu_r"), plt.Normalize(-LIMIT, LIMIT)
    for y, row in enumerate(rows):
        if isinstance(row, str):
            continue
        value = _invented(row)
        axes[0].barh(y, value, color="0.65")
        axes[0].text(value + 2, y, f"{value:.0f}", va="center", fontsize=8.5)
        for panel, (way, names) in zip(axes[1:], panels.items(), strict=True):
            for x, name in enumerate(names):
                found = _effect(row, name, way)
                colour = colours(norm(found[0])) if found else "0.82"
                panel.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
                if found:
                    _write(panel, x, y, found, digits=0)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    axes[0].set_xlim(0, 105)
    axes[0].set_xticks([])
    axes[0].set_yticks(range(len(rows)), [_called(row) for row in rows], fontsize=9)
    for label, row in zip(axes[0].get_yticklabels(), rows, strict=True):
        label.set_weight("bold" if isinstance(row, str) else "normal")
    axes[0].set_title("of 100 objects\nnamed, invented\n(greedy)", fontsize=9)
    for panel, (way, names) in zip(axes[1:], panels.items(), strict=True):
        panel.set_xlim(-0.5, len(names) - 0.5)
        panel.set_xticks(range(len(names)), [SHOWN[name] for name in names], fontsize=8)
        panel.xaxis.tick_top()
        panel.set_title(FOUND[way], fontsize=10.5, weight="bold", pad=8)
    for panel in axes:
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    legend = [Patch(color=colours(0.12), label="invents less"), Patch(color=colours(0.88), label="invents more")]
    legend += [Patch(facecolor=colours(0.5), edgecolor="0.8", label="no change")]
    legend += [Patch(color="0.82", label="not measured")]
    figure.legend(handles=legend, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.suptitle("Which method makes which model invent less? A row is a small model made in its own way.\n"
                    "Change of the invented share (CHAIR_i) in points; bold: 95 % interval without zero",
                    fontsize=10.5)  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def _invented(entry: Entry) -> float:
    return float(entry["regular"]["greedy"]["chair_i"][0])


def _worst(entries: Sequence[Entry]) -> list[Entry]:
    return sorted(entries, key=_invented, reverse=True)


def _called(row: str | Entry) -> str:
    return row if isinstance(row, str) else described(str(row["name"])).removesuffix(", embellished captions")


def _write(axes: Any, x: int, y: int, found: Sequence[float], digits: int = 1) -> None:
    value, low, high = found
    sure = low > 0 or high < 0
    dark = "white" if abs(value) > 0.6 * LIMIT else "black"
    text = f"{value:+.{digits}f}".replace("-", "\N{MINUS SIGN}")
    text = "0" if text in ("+0", "\N{MINUS SIGN}0") else text
    weight = "bold" if sure else "normal"
    axes.text(x, y, text, ha="center", va="center", fontsize=8.5, weight=weight, color=dark if sure else "0.35")
