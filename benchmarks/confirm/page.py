"""The tables and the picture of `confirm` in docs/evidence.md, from results/scores.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "evidence.md"
PICTURE = ROOT / "docs" / "images" / "evidence" / "confirm.svg"
TITLES = {"photo-test": "photographs, `photo`", "scenes-test": "drawn scenes, the packaged model"}
AVERAGES = ROOT / "src" / "seewhen" / "showing" / "data" / "averages.json"
AVERAGED = ("confirm, verdict, threshold 0", "confirm, asking alone, threshold 0")
ASKING = re.compile(r"confirm_lexiconcoco_verdictasking_threshold(-?[\d.]+)")


def called(method: str) -> str | None:
    """How a row is called on the page; None for rows that are not shown."""
    asking = ASKING.fullmatch(method)
    if asking:
        return f"`confirm`, asking alone, threshold {float(asking[1]):g}"
    if method.startswith("verdict"):
        return f"`confirm`, verdict, threshold {float(method.removeprefix('verdict')):g}"
    return {"mark": None}.get(method, method)


def table(rows: list[dict[str, Any]], mode: str) -> str:
    """One mode of one part."""
    wanted = [row for row in rows if row["tokens"] == 64 and row["mode"] == mode and called(row["method"])]
    if mode == "t1":
        wanted += [
            row | {"method": f"regular, temperature {row['mode'][1:]}"}
            for row in rows
            if row["method"] == "regular" and row["mode"] in ("t0.33", "t0.5", "t0.7") and row["tokens"] == 64
        ]
    lines = [
        "| | seeds | CHAIR_s | CHAIR_i | unique | recall | F1 | words | asked | steps | Δ CHAIR_i | Δ recall |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for row in wanted:
        numbers = [
            f"{row[n]['value']:.1f}" for n in ("chair_s", "chair_i", "chair_i_unique", "recall", "f1", "words")
        ]
        costs = [f"{row['asked']['value']:.1f}", f"{row['steps']['value']:.2f}"]
        gaps = [_gap(row[name]) for name in ("chair_i", "recall")]
        name = called(row["method"]) or row["method"]
        lines.append(" | ".join([f"| {name}", str(row["seeds"]), *numbers, *costs, *gaps]) + " |")
    return "\n".join(lines)


def _gap(cell: dict[str, Any]) -> str:
    gap = cell.get("difference")
    return f"{gap['value']:+.1f} ({gap['low']:+.1f} to {gap['high']:+.1f})" if gap else ""


def ceilings(scores: dict[str, Any]) -> str:
    """What each model could recover."""
    lines = ["| | invented now | at the same recall | recoverable |", "|---|---|---|---|"]
    for part, title in TITLES.items():
        for mode, found in scores[part].get("ceiling", {}).items():
            cells = [found[name] for name in ("invented_now", "invented_at_same_recall", "recoverable")]
            shown = [f"{100 * c['value']:.1f} ({100 * c['low']:.1f} to {100 * c['high']:.1f})" for c in cells]
            lines.append(" | ".join([f"| {title}, {'greedy' if mode == 'greedy' else 'sampled'}", *shown]) + " |")
    return "\n".join(lines)


def blocks(scores: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page, by their marks."""
    found = {"ceiling": ceilings(scores)}
    for part in TITLES:
        for mode in ("greedy", "t1"):
            found[f"{part} {mode}"] = table(scores[part]["rows"], mode)
    return found


def filled(text: str, parts: dict[str, str]) -> str:
    """The page with its generated parts replaced."""
    for name, content in parts.items():
        mark = re.compile(rf"(<!-- confirm {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda match, content=content: f"{match[1]}{content}\n{match[2]}", text)
    return text


def draw(scores: dict[str, Any]) -> None:
    """CHAIR_i against recall: thresholds of `confirm` beside the controls."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "seewhen"
    figure, axes = plt.subplots(2, 2, figsize=(9, 7), constrained_layout=True)
    kinds = {
        "asking alone": ("#1f77b4", lambda m: bool(ASKING.fullmatch(m))),
        "verdict": ("#2ca02c", lambda m: m.startswith("verdict")),
        "cut after k sentences": ("#d62728", lambda m: "sentences" in m),
        "cooler, min-p": ("#9467bd", lambda m: m == "min-p" or m.startswith("cooler")),
    }
    for down, (part, title) in enumerate(TITLES.items()):
        for across, mode in enumerate(("greedy", "t1")):
            axis = axes[down][across]
            rows = [row for row in scores[part]["rows"] if row["tokens"] == 64]
            shown = [r for r in rows if r["mode"] == mode]
            if mode == "t1":
                cooler = [r for r in rows if r["method"] == "regular" and r["mode"] in ("t0.33", "t0.5", "t0.7")]
                shown += [r | {"method": "cooler"} for r in cooler]
            for label, (colour, belongs) in kinds.items():
                mine = sorted((r for r in shown if belongs(r["method"])), key=lambda r: r["recall"]["value"])
                if mine:
                    x, y = ([r[n]["value"] for r in mine] for n in ("recall", "chair_i"))
                    axis.plot(x, y, "o-", color=colour, label=label, markersize=4)
            plain = next(r for r in shown if r["method"] == "regular")
            axis.plot(plain["recall"]["value"], plain["chair_i"]["value"], "k*", markersize=11, label="regular")
            axis.set_title(f"{title.replace('`', '')}, {'greedy' if mode == 'greedy' else 'sampled'}", fontsize=10)
            axis.set_xlabel("recall (right is better)")
            axis.set_ylabel("CHAIR_i (down is better)")
            axis.grid(alpha=0.3)
    axes[1][1].legend(fontsize=8)  # the one that has all kinds
    figure.savefig(PICTURE, metadata={"Date": None})


def averages(scores: dict[str, Any]) -> dict[str, Any]:
    """What stands under the demonstration: the photographs' model, regular decoding and `confirm`."""
    rows = []
    for row in scores["photo-test"]["rows"]:
        name = called(row["method"])
        if row["tokens"] != 64 or row["mode"] not in ("greedy", "t1") or name is None or "sentences" in name:
            continue
        cell, mode = row["chair_i"], "greedy" if row["mode"] == "greedy" else "sampled"
        found = {"method": name.replace("`", ""), "mode": mode, "chair_i": cell["value"]}
        found |= {"chair_i_low": cell["low"], "chair_i_high": cell["high"], "chair_s": row["chair_s"]["value"]}
        rows.append(found | {"recall": row["recall"]["value"], "images": row["pictures"]})
    kept = [row for row in rows if row["method"] == "regular" or row["method"] in AVERAGED]
    return {"model": "photo", "rows": sorted(kept, key=lambda row: (row["mode"], row["method"] != "regular"))}


def main() -> None:
    scores = json.loads((HERE / "results" / "scores.json").read_text("utf-8"))
    PAGE.write_text(filled(PAGE.read_text("utf-8"), blocks(scores)), encoding="utf-8")
    AVERAGES.parent.mkdir(exist_ok=True)
    AVERAGES.write_text(json.dumps(averages(scores), indent=1) + "\n", encoding="utf-8")
    draw(scores)


if __name__ == "__main__":
    main()
