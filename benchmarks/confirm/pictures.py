"""The pictures of `confirm` in the docs: curves beside the controls, what `when` saves, calibration."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / "docs" / "images" / "evidence"
PARTS = {"photo-test": "photographs, photo", "scenes-test": "drawn scenes, packaged model"}
KINDS: dict[str, tuple[str, Callable[[str], bool]]] = {
    "asking alone": ("#1f77b4", lambda method: method.startswith("asking")),
    "verdict": ("#2ca02c", lambda method: method.startswith("verdict")),
    "cut after k sentences": ("#d62728", lambda method: "sentences" in method),
    "cooler": ("#9467bd", lambda method: method == "cooler"),
    "the most typical of 5": ("#17becf", lambda method: "most typical" in method),
    "min-p": ("#8c564b", lambda method: method == "min-p"),
    "as it comes": ("#000000", lambda method: method == "comes"),
    "4 drafts": ("#ff7f0e", lambda method: method == "drafts4" or method.startswith("drafts4t")),
    "LocoRE": ("#e377c2", lambda method: method.startswith("locore")),
}
CONTROLS = ("cut after k sentences", "cooler")  # curves that begin at regular decoding
AXES = {"chair_i": "CHAIR_i (down is better)", "chair_s": "CHAIR_s (down is better)"}


def draw(scores: dict[str, Any]) -> None:
    """All of them."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "seewhen"
    for metric, name in (("chair_i", "confirm.svg"), ("chair_s", "confirm-sentences.svg")):
        _curves(scores, metric, FOLDER / name)
    _when(scores, FOLDER / "confirm-when.svg")
    _calibration(json.loads((HERE / "detector.json").read_text("utf-8")), FOLDER / "confirm-calibration.svg")


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _curves(scores: dict[str, Any], metric: str, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(9, 7), constrained_layout=True)
    for down, (part, title) in enumerate(PARTS.items()):
        for across, mode in enumerate(("greedy", "t1")):
            axis = axes[down][across]
            rows = [row for row in scores[part]["rows"] if row["tokens"] == 64]
            shown = [row for row in rows if row["mode"] == mode]
            plain = next(row for row in shown if row["method"] == "regular")
            if mode == "t1":
                cooler = [row for row in rows if row["method"] == "regular" and row["mode"] != "t1"]
                shown += [row | {"method": "cooler"} for row in cooler]
            for label, (colour, belongs) in KINDS.items():
                mine = [row for row in shown if belongs(row["method"])]
                if not mine:
                    continue
                if label in CONTROLS:
                    mine.append(plain)
                mine.sort(key=lambda row: row["mode"] if label == "cooler" else row["recall"]["value"])
                x, y = ([row[name]["value"] for row in mine] for name in ("recall", metric))
                axis.plot(x, y, "o-", color=colour, label=label, markersize=4)
                for row, *place in zip(mine, x, y, strict=True):
                    axis.annotate(_number(row), place, (3, 3), textcoords="offset points", fontsize=6)
            axis.plot(plain["recall"]["value"], plain[metric]["value"], "k*", markersize=11, label="regular")
            axis.set_title(f"{title}, {'greedy' if mode == 'greedy' else 'sampled'}", fontsize=10)
            axis.set_xlabel("recall (right is better)")
            axis.set_ylabel(AXES[metric])
            axis.grid(alpha=0.3)
    handles = {
        label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, fontsize=8)
    _save(figure, path)


def _number(row: dict[str, Any]) -> str:
    """What stands beside a point: a threshold, a number of sentences, a temperature."""
    if row["method"] == "cooler":
        return "greedy" if row["mode"] == "greedy" else str(row["mode"][1:])
    found = re.search(r"-?[\d.]+", re.sub(r"^drafts\d|the most typical of \d", "", row["method"]))
    return found[0] if found else ""


def _when(scores: dict[str, Any], path: Path) -> None:
    """How much of the effect is left where only doubtful words are asked about."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 4.4), sharey=True, constrained_layout=True)
    for axis, (part, title) in zip(axes, PARTS.items(), strict=True):
        _saved(axis, scores[part.replace("test", "ablation")]["rows"])
        axis.set_title(f"{title}, sampled", fontsize=10)
        axis.set_xlabel("questions saved, percent")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, loc="lower left")
    axes[0].set_ylabel("effect on CHAIR_i kept, percent")
    _save(figure, path)


def _saved(axis: Any, rows: list[dict[str, Any]]) -> None:
    """One model's questions, and the controls, which ask none."""
    named = {(row["method"], row["mode"]): row for row in rows}
    whole = named["verdict0", "t1"]

    def kept(row: dict[str, Any]) -> float:
        return 100 * float(row["chair_i"]["difference"]["value"] / whole["chair_i"]["difference"]["value"])

    for kind, colour in (("entropy", "#1f77b4"), ("probability", "#d62728")):
        mine = [row for (name, mode), row in named.items() if re.match(kind, name) and mode == "t1"]
        mine = sorted([*mine, whole], key=lambda row: row["asked"]["value"])
        saved = [100 * (1 - row["asked"]["value"] / whole["asked"]["value"]) for row in mine]
        label = f"asked by {kind} (all asked: recall {_points(whole)})"
        axis.plot(saved, [kept(row) for row in mine], "o-", color=colour, label=label)
    axis.plot([0, 100], [100, 0], color="#999999", linestyle=":", label="as much lost as saved")
    for row, colour, shape, label in (
        (named["regular, 3 sentences", "t1"], "#2ca02c", "s", "cut after 3 sentences"),
        (named["regular", "t0.33"], "#9467bd", "D", "temperature 0.33"),
    ):
        axis.plot([100], [kept(row)], shape, color=colour, label=f"{label}: recall {_points(row)}")


def _points(row: dict[str, Any]) -> str:
    return f"{row['recall']['difference']['value']:+.1f}"


def _calibration(detector: dict[str, Any], path: Path) -> None:
    """What the verdicts promise against what is so."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(detector), figsize=(12, 3.4), sharey=True, constrained_layout=True)
    for axis, (title, found) in zip(axes, detector.items(), strict=True):
        axis.plot([0, 1], [0, 1], color="#999999", linestyle=":")
        for (name, label), colour in zip(
            (("verdict", "confirm"), ("asked", "check")), ("#2ca02c", "#1f77b4"), strict=True
        ):
            groups = found["calibration"][name]
            x, y = [g["predicted"] for g in groups], [g["there"]["value"] for g in groups]
            below = [g["there"]["value"] - g["there"]["low"] for g in groups]
            above = [g["there"]["high"] - g["there"]["value"] for g in groups]
            axis.errorbar(x, y, yerr=[below, above], fmt="o-", markersize=3, color=colour, label=label)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("probability it gives")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share that is there")
    axes[0].legend(fontsize=8)
    _save(figure, path)
