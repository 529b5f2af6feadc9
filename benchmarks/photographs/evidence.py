"""The tables and the pictures of docs/evidence.md, from the committed results.

    python -m photographs.evidence

Each table stands between two marks in the page and is replaced there; a test compares them with the results.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from photographs import tables
from photographs.tables import ASKED, TOLD_LONG, TOLD_SAMPLED, Key, groups, label

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCS = HERE.parents[1] / "docs"
END = "<!-- end of table -->"


def start(name: str) -> str:
    return f"<!-- table: photographs.evidence {name} -->"


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text("utf-8"))


def all_tables() -> dict[str, str]:
    """Every table of the page by its name."""
    report, trials, tuned = (read(f"{folder}/report.json") for folder in ("report", "trials", "tuned"))
    chosen = read("tuned/chosen.json")
    return {
        "greedy": tables.greedy_table(report),
        "corrected": tables.corrected_table(report),
        "sampled": tables.sampled_table(report),
        "cut-greedy": tables.cut_table(report, tuned, tables.TOLD),
        "cut-sampled": tables.cut_table(report, tuned, tables.TOLD_SAMPLED),
        "tuned": tables.tuned_table(tuned, chosen),
        "tried": tables.tried_table(trials, chosen),
        "ablations": tables.ablation_table(trials),
        "cost": tables.cost_table(read("latency-cpu.json"), read("latency-cuda.json")),
    }


def with_table(page: str, name: str, made: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(start(name))
    _, _, after = rest.partition(END)
    return f"{before}{start(name)}\n{made}\n{END}{after}"


Panel = tuple[str, Key, str, str]  # heading, group, metric, baseline

GREEDY_PANELS: tuple[Panel, ...] = (
    ("CHAIR_I, captions\n(less is better)", TOLD_LONG, "chair_i", "regular"),
    ("recall, captions\n(more is better)", TOLD_LONG, "recall", "regular"),
    ("accuracy, POPE\n(more is better)", ASKED, "accuracy", "regular"),
)
SAMPLED_PANELS: tuple[Panel, ...] = (
    ("CHAIR_I against regular sampling\n(less is better)", TOLD_SAMPLED, "chair_i", "regular"),
    ("CHAIR_I against the cut alone\n(less is better)", TOLD_SAMPLED, "chair_i", "min-p"),
    ("POPE accuracy against the cut alone\n(more is better)", ("pope", "sample", 8), "accuracy", "min-p"),
)


def draw_methods(report: dict[str, Any], panels: Sequence[Panel], out: Path) -> None:
    """Differences from a baseline with their intervals, side by side."""
    import matplotlib.pyplot as plt

    found = groups(report)
    names = [label(m) for m in found[panels[0][1]]["methods"] if m["label"] != "regular"]
    figure, axes = plt.subplots(1, len(panels), figsize=(9.5, 5.2), sharey=True, layout="constrained")
    for axis, (heading, key, metric, against) in zip(axes, panels, strict=True):
        axis.axvline(0, color="0.6", linewidth=0.8)
        for method in found[key]["methods"]:
            for c in method["comparisons"]:
                if (c["against"], c["metric"]) == (against, metric) and label(method) in names:
                    real = c["verdict"] == "real"
                    colour = ("tab:green" if c["better"] else "tab:red") if real else "0.45"
                    place = len(names) - names.index(label(method))
                    axis.plot([c["low"], c["high"]], [place, place], color=colour, linewidth=1.6)
                    axis.plot(c["value"], place, "o", color=colour, markersize=4.5)
        axis.set_title(heading, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(names), 0, -1), names, fontsize=8)
    figure.supxlabel("difference in points, 95 % interval; grey: no significant difference", fontsize=8)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def draw_learning(lines: list[dict[str, Any]], out: Path) -> None:
    """The training of the committed model over its seconds."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    tower = [line for line in lines if line.get("stage") == "tower"]
    seen = [line for line in tower if "validation_map" in line]
    left.plot(
        [x["seconds"] for x in seen], [x["validation_map"] for x in seen], "o-", label="mean average precision"
    )
    left.axhline(0.55, color="0.6", linewidth=0.8, linestyle="--")
    left.annotate("EfficientNet-Lite0, frozen", (150, 0.56), fontsize=8, color="0.4")
    left.set(title="tower: mean average precision, validation", xlabel="seconds", ylim=(0, 1))
    spoken = [line for line in lines if line.get("stage") == "finetune" and "describe" in line]
    for name in ("describe", "ask", "text"):
        right.plot([x["seconds"] for x in spoken], [x[name] for x in spoken], "o-", markersize=3, label=name)
    right.set(title="fine-tune: loss per token", xlabel="seconds", ylim=(0, None))
    right.legend(fontsize=8, frameon=False)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(out, dpi=150)
    plt.close(figure)


def main() -> None:
    """Write all of it."""
    pictures = DOCS / "images" / "evidence"
    pictures.mkdir(parents=True, exist_ok=True)
    report = read("report/report.json")
    draw_methods(report, GREEDY_PANELS, pictures / "methods.png")
    draw_methods(report, SAMPLED_PANELS, pictures / "sampled.png")
    training = (RESULTS / "training.jsonl").read_text("utf-8").splitlines()
    draw_learning([json.loads(line) for line in training], pictures / "learning.png")
    page = (DOCS / "evidence.md").read_text("utf-8")
    for name, made in all_tables().items():
        page = with_table(page, name, made)
    (DOCS / "evidence.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
