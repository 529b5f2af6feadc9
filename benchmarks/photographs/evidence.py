"""The table and the pictures of docs/evidence.md, from the committed results.

    python -m photographs.evidence

The table stands between two marks in the page and is replaced there; a test compares it with the results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seewhen.runs.words import title

HERE = Path(__file__).parent
RESULTS = HERE / "results"
DOCS = HERE.parents[1] / "docs"
START, END = "<!-- table: photographs.evidence -->", "<!-- end of table -->"

GREEDY, SAMPLED = "greedy", "sample"
COLUMNS = (
    ("CHAIR_I", ("chair", GREEDY, 64), "chair_i"),
    ("recall", ("chair", GREEDY, 64), "recall"),
    ("CHAIR_I, 128", ("chair", GREEDY, 128), "chair_i"),
    ("POPE random", ("pope", GREEDY, 8), "coco-random/accuracy"),
    ("popular", ("pope", GREEDY, 8), "coco-popular/accuracy"),
    ("adversarial", ("pope", GREEDY, 8), "coco-adversarial/accuracy"),
    ("sampled CHAIR_I", ("chair", SAMPLED, 64), "chair_i"),
)
Group = dict[str, Any]


def groups(report: dict[str, Any]) -> dict[tuple[str, str, int], Group]:
    """The report's groups by benchmark, decoding and tokens."""
    found = {}
    for group in report["groups"]:
        facts = group["facts"]
        found[facts["benchmark"], facts["decoding"], facts["max new tokens"]] = group
    return found


def label(method: dict[str, Any]) -> str:
    """As in the report; CAI with its default is the same row, whether or not others of it ran in a group."""
    name = str(method["label"])
    return title("cai" if name.startswith("cai (default") else name)


def cell(method: dict[str, Any], metric: str) -> str:
    """A value, marked where its difference from regular decoding is real."""
    mark = ""
    for comparison in method["comparisons"]:
        if (comparison["against"], comparison["metric"], comparison["verdict"]) == ("regular", metric, "real"):
            mark = " ▲" if comparison["better"] else " ▼"
    return f"{method['metrics'][metric]['value']:.1f}{mark}"


def table(report: dict[str, Any]) -> str:
    """One row per method, in the report's order."""
    found = groups(report)
    rows: dict[str, dict[str, str]] = {}
    for name, key, metric in COLUMNS:
        for method in found[key]["methods"]:
            if metric in method["metrics"]:
                rows.setdefault(label(method), {})[name] = cell(method, metric)
    lines = ["| method | " + " | ".join(name for name, _, _ in COLUMNS) + " |", "|---|" + "--:|" * len(COLUMNS)]
    for row, cells in rows.items():
        lines.append(f"| {row} | " + " | ".join(cells.get(name, "–") for name, _, _ in COLUMNS) + " |")
    return "\n".join(lines)


def with_table(page: str, made: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{made}\n{END}{after}"


def draw_methods(report: dict[str, Any], out: Path) -> None:
    """Differences from regular decoding with their intervals: invented objects, recall, questions."""
    import matplotlib.pyplot as plt

    found = groups(report)
    wanted = (
        ("CHAIR_I, captions\n(less is better)", ("chair", GREEDY, 128), "chair_i"),
        ("recall, captions\n(more is better)", ("chair", GREEDY, 128), "recall"),
        ("accuracy, POPE\n(more is better)", ("pope", GREEDY, 8), "accuracy"),
    )
    names = [label(m) for m in found["chair", GREEDY, 128]["methods"] if m["label"] != "regular"]
    figure, axes = plt.subplots(1, 3, figsize=(9.5, 5.2), sharey=True, layout="constrained")
    for axis, (heading, key, metric) in zip(axes, wanted, strict=True):
        axis.axvline(0, color="0.6", linewidth=0.8)
        for method in found[key]["methods"]:
            for c in method["comparisons"]:
                if (c["against"], c["metric"]) == ("regular", metric) and label(method) in names:
                    real = c["verdict"] == "real"
                    colour = ("tab:green" if c["better"] else "tab:red") if real else "0.45"
                    place = len(names) - names.index(label(method))
                    axis.plot([c["low"], c["high"]], [place, place], color=colour, linewidth=1.6)
                    axis.plot(c["value"], place, "o", color=colour, markersize=4.5)
        axis.set_title(heading, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_yticks(range(len(names), 0, -1), names, fontsize=8)
    figure.supxlabel("points more than regular decoding, 95 % interval; grey: cannot be told apart", fontsize=8)
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
    report = json.loads((RESULTS / "report" / "report.json").read_text("utf-8"))
    pictures = DOCS / "images" / "evidence"
    pictures.mkdir(parents=True, exist_ok=True)
    draw_methods(report, pictures / "methods.png")
    training = (RESULTS / "training.jsonl").read_text("utf-8").splitlines()
    draw_learning([json.loads(line) for line in training], pictures / "learning.png")
    page = DOCS / "evidence.md"
    page.write_text(with_table(page.read_text("utf-8"), table(report)), encoding="utf-8")


if __name__ == "__main__":
    main()
