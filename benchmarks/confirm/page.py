"""The tables and pictures of `confirm` in docs/evidence.md, from results/scores.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

from confirm import pictures, prototype
from confirm.cost import FILES as COSTS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "evidence.md"
TITLES = {"photo-test": "photographs, `photo`", "scenes-test": "drawn scenes, the packaged model"}
AVERAGES = ROOT / "src" / "seewhen" / "showing" / "data" / "averages.json"
AVERAGED = (  # the methods of the demonstration, the same with drafts, and the controls
    "regular",
    "cai",
    "confirm as it comes",
    "cai+confirm as it comes",
    "confirm, 4 drafts as it comes",
    "regular, cut after 3 sentences",
    "regular, temperature 0.33",
)
MODELS = {"photo": "photo-test", "packaged": "scenes-test"}
COOLER = ("t0.33", "t0.5", "t0.7")
GPU_COST = ROOT / "benchmarks" / "speed" / "results" / "h200-confirm-ahead.json"
PUBLISHED = ROOT / "benchmarks" / "photographs" / "results" / "report" / "report.json"
PUBLISHED_GROUPS = {"greedy": 0, "t1": 2}  # CHAIR at 64 tokens in that report
OURS = {  # in the table of gains: `confirm` and its controls
    "comes": "`confirm` as it comes",
    "drafts4": "`confirm`, 4 drafts as it comes",
    "regular, 3 sentences": "regular, cut after 3 sentences",
    "regular, 4 sentences": "regular, cut after 4 sentences",
    "regular, the most typical of 5": "regular, the most typical of 5",
}
NAMES = {
    "verdict0": "`confirm`, first fit, threshold 0 (two retries)",
    "attempt": "a fit that knows the attempt, threshold 0",
    "comes": "as it comes: that fit and its threshold",
    "drafts4": "the same with four drafts, which a fit of its own knows, at its threshold",
    "spares": "as it comes, and sentences of four drafts take the place of denied ones",
    "retries0": "no retries: the answer ends",
    "retries1": "one retry",
    "retries4": "four retries",
    "stop": "the answer ends before the first denied sentence",
    "open": "the words of `open` instead of CHAIR's",
    "asking0": "asking alone, threshold 0",
    "blind": "asking alone, less the odds without a picture",
    "word-level": "word level: nothing is taken back, words are less probable",
    "question-see": "asked: do you see a …?",
    "question-show": "asked: does this image show a …?",
    "question-present": "asked: is a … present in this picture?",
}
COSTLY = {
    "regular": "regular",
    "mark": "`confirm:mark`",
    "confirm": "`confirm`",
    "four drafts": "`confirm`, 4 drafts",
}
COLUMNS = ("chair_s", "chair_i", "chair_i_unique", "recall", "f1", "words")


def called(method: str) -> str | None:
    """How a row is called on the page; None for rows that are not shown."""
    found = re.fullmatch(r"(min-p\+|cai\+)?(asking|verdict)(-?[\d.]+)", method)
    if found:
        how = ", asking alone" if found[2] == "asking" else ""
        return f"`{found[1] or ''}confirm`{how}, threshold {float(found[3]):g}"
    found = re.fullmatch(r"(min-p\+|cai\+)?drafts(\d)(?:t(-?[\d.]+))?", method)
    if found:
        level = f", threshold {found[3]}" if found[3] else " as it comes"
        return f"`{found[1] or ''}confirm`, {found[2]} drafts{level}"
    if method.endswith("comes"):
        return f"`{method.removesuffix('comes')}confirm` as it comes"
    method = re.sub(r", (\d) sentences", r", cut after \1 sentences", method)
    return {"mark": None}.get(method, method.replace("_beta", ", beta "))


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    """Controls first."""
    number = re.search(r"-?[\d.]+$", row["method"])
    kinds = ("regular", "min-p", "locore", "cai", "comes", "asking", "verdict", "drafts", "min-p+", "cai+")
    kind = max((k for k in kinds if row["method"].startswith(k)), key=len, default="")
    return kinds.index(kind) if kind else len(kinds), float(number[0]) if number else 0.0


def table(rows: list[dict[str, Any]], mode: str, tokens: int = 64) -> str:
    """One mode of one part."""
    same = [row for row in rows if row["tokens"] == tokens]
    wanted = sorted((row for row in same if row["mode"] == mode and called(row["method"])), key=order)
    named = [(called(row["method"]) or "", row) for row in wanted]
    return rendered(named + (_cooler(same, ("regular", "comes", "verdict0")) if mode == "t1" else []))


def _cooler(rows: list[dict[str, Any]], methods: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
    """The control that samples at lower temperatures, and what `confirm` does there."""
    found = [row for row in rows if row["mode"] in COOLER and row["method"] in methods]
    return [
        (f"{called(row['method'])}, temperature {row['mode'][1:]}", row)
        for row in sorted(found, key=lambda row: (row["mode"], methods.index(row["method"])))
    ]


def rendered(rows: list[tuple[str, dict[str, Any]]]) -> str:
    """Named rows as a table."""
    lines = [
        "| | seeds | CHAIR_s | CHAIR_i | unique | recall | F1 | words | asked | steps | Δ CHAIR_i | Δ recall |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name, row in rows:
        numbers = [f"{row[n]['value']:.1f}" for n in COLUMNS]
        costs = [f"{row['asked']['value']:.1f}", f"{row['steps']['value']:.2f}"]
        gaps = [_gap(row[column]) for column in ("chair_i", "recall")]
        lines.append(" | ".join([f"| {name}", str(row["seeds"]), *numbers, *costs, *gaps]) + " |")
    return "\n".join(lines)


def _gap(cell: dict[str, Any]) -> str:
    gap = cell.get("difference")
    return f"{gap['value']:+.1f} ({gap['low']:+.1f} to {gap['high']:+.1f})" if gap else ""


def ceilings(scores: dict[str, Any]) -> str:
    """What each model could recover."""
    lines = ["| | pictures | invented now | at the same recall | recoverable | without other captions |"]
    lines.append("|---|---|---|---|---|---|")
    for part, title in TITLES.items():
        for mode, found in scores[part].get("ceiling", {}).items():
            cells = [found[name] for name in ("invented_now", "invented_at_same_recall", "recoverable")]
            shown = [_share(cell) for cell in (*cells, found["alone"]["recoverable"])]
            how = "greedy" if mode == "greedy" else "sampled"
            lines.append(" | ".join([f"| {title}, {how}", str(found["pictures"]), *shown]) + " |")
    return "\n".join(lines)


def ablations(scores: dict[str, Any], part: str) -> str:
    """What each choice of `confirm` is worth."""
    rows = {row["method"]: row for row in scores[part]["rows"] if row["mode"] == "t1"}
    doubts = [name for name in rows if re.match(r"entropy|probability", name)]
    controls = ("regular", *(f"regular, {number} sentences" for number in (2, 3, 4)))
    named = [(called(name) or name, rows[name]) for name in controls]
    named += _cooler(scores[part]["rows"], ("regular",))
    named += [(title, rows[n]) for n, title in NAMES.items() if n in rows]
    for name in sorted(doubts):
        kind, level = re.match(r"([a-z]+)(.*)", name).groups()  # type: ignore[union-attr]
        what = f"entropy above {level}" if kind == "entropy" else f"probability below {1 - float(level):g}"
        named.append((f"asked only about words with {what}", rows[name]))
    return rendered(named)


def targets(scores: dict[str, Any]) -> str:
    """What was aimed at: a quarter less at equal recall, better than cutting, most of the ceiling."""
    lines = [
        "| | CHAIR_i | Δ recall | cut after so many sentences | cooler | recoverable | recovered | of one text's |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for part, title in TITLES.items():
        for mode, how in (("t1", "sampled"), ("greedy", "greedy")):
            rows = {
                row["method"]: row for row in scores[part]["rows"] if (row["mode"], row["tokens"]) == (mode, 64)
            }
            cuts = [f"{number}: {_beside(rows[f'regular, {number} sentences'])}" for number in (3, 4)]
            cooler = "greedy is the coolest" if mode == "greedy" else _coolest(scores[part]["rows"])
            ceiling = scores[part]["ceiling"][mode]["recoverable"]
            alone = scores[part]["ceiling"][mode]["alone"]["recoverable"]
            for name in ("comes", "verdict-1", "drafts2", "drafts4"):
                if name in rows:
                    cells = [
                        *_aimed(rows[name]),
                        "; ".join(cuts),
                        cooler,
                        _share(ceiling),
                        f"{_gain(rows[name]):.1f}{_recovered(rows[name], ceiling)}",
                        _recovered(rows[name], alone).removeprefix(": "),
                    ]
                    lines.append(" | ".join([f"| {title}, {how}: {called(name)}", *cells]) + " |")
            read = _at_equal_recall(rows, "drafts4t-1", "drafts4t0")
            away = abs(rows["drafts4"]["recall"]["difference"]["value"]) > 1
            if read is not None and away and ceiling["low"] > 0:
                one = f"{read / (100 * alone['value']):.0%}" if alone["low"] > 0 else ""
                share = f"{read:.1f}: {read / (100 * ceiling['value']):.0%}"
                name = "`confirm`, 4 drafts, read between thresholds -1 and 0 (first seed)"
                cells = ["", "+0.0", "; ".join(cuts), cooler, _share(ceiling), share, one]
                lines.append(" | ".join([f"| {title}, {how}: {name}", *cells]) + " |")
    return "\n".join(lines)


def _at_equal_recall(rows: dict[str, Any], milder: str, stricter: str) -> float | None:
    """The gain at regular's own recall if some pictures had one threshold and the rest the other; None where the
    two do not lie on both sides of it. A reading of two runs, no run: their share depends on the test's recall."""
    if milder not in rows or stricter not in rows:
        return None
    above, below = (rows[name]["recall"]["difference"]["value"] for name in (milder, stricter))
    if not above >= 0 > below:
        return None
    share = above / (above - below)
    return (1 - share) * _gain(rows[milder]) + share * _gain(rows[stricter])


def beside(scores: dict[str, Any]) -> str:
    """`confirm` as it comes less each control, paired by picture and seed."""
    metrics = {"chair_i": "Δ CHAIR_i", "recall": "Δ recall", "f1": "Δ F1"}
    kinds = {"comes": "no drafts", "drafts4": "4 drafts"}
    titles = [f"{kind}: {title}" for kind in kinds.values() for title in metrics.values()]
    lines = ["| `confirm` as it comes, less | " + " | ".join(titles) + " |", "|---|" + "---|" * len(titles)]
    for part, title in TITLES.items():
        for mode, how in (("t1", "sampled"), ("greedy", "greedy")):
            rows = {r["method"]: r for r in scores[part]["rows"] if (r["mode"], r["tokens"]) == (mode, 64)}
            for control in rows["comes"]["beside"]:
                gaps = [rows[kind]["beside"][control][metric] for kind in kinds for metric in metrics]
                cells = [_gap({"difference": gap}) for gap in gaps]
                lines.append(" | ".join([f"| {title}, {how}: regular, {control}", *cells]) + " |")
    return "\n".join(lines)


def costs() -> str:
    """Milliseconds for each token of the final answer, questions and what was taken back included."""
    lines = [
        "| | ms per token of the final answer | whole answer, times regular | tokens | asked | taken back |",
        "|---|---|---|---|---|---|",
    ]
    for model, title in (("photo", "`photo`, one CPU core"), ("packaged", "packaged model, one CPU core")):
        found = json.loads(COSTS[model].read_text("utf-8"))
        for method, mean in found["mean"].items():
            whole = found["whole answer"].get(method)
            ratio = f"{whole['value']:.2f} ({whole['low']:.2f} to {whole['high']:.2f})" if whole else "1"
            told = [f"{mean[key]:.1f}" for key in ("tokens", "asked", "taken_back")]
            cells = [f"{1000 * mean['processor'] / mean['tokens']:.1f}", ratio, *told]
            lines.append(" | ".join([f"| {title}: {COSTLY[method]}", *cells]) + " |")
    (gpu,) = json.loads(GPU_COST.read_text("utf-8"))["measured"]
    for plan, name, asked, back in (("regular", COSTLY["regular"], 0, 0), ("both", COSTLY["confirm"], 3, 1)):
        ratio = gpu["ratios"][plan]
        whole = f"{ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})" if asked else "1"
        each = 1000 * median(gpu["seconds"][plan]) / gpu["tokens"]
        cells = [f"{each:.1f}", whole, str(gpu["tokens"]), str(asked), str(back)]
        lines.append(" | ".join([f"| LLaVA-1.5-7B's shape, one H200, a plan: {name}", *cells]) + " |")
    return "\n".join(lines)


def _beside(row: dict[str, Any]) -> str:
    return f"{row['chair_i']['value']:.1f} at {row['recall']['difference']['value']:+.1f}"


def _coolest(rows: list[dict[str, Any]]) -> str:
    found = {row["mode"]: row for row in rows if (row["method"], row["tokens"]) == ("regular", 64)}
    return f"{COOLER[0][1:]}: {_beside(found[COOLER[0]])}"


def _aimed(row: dict[str, Any]) -> tuple[str, str]:
    value, gap, share = (row["chair_i"][name] for name in ("value", "difference", "share"))
    less = f"{gap['value'] / (value - gap['value']):+.0%}, {share['low']:+.0%} to {share['high']:+.0%}"
    return f"{value:.1f} ({less})", _gap(row["recall"])


def _gain(row: dict[str, Any]) -> float:
    """Points of unique objects that are no longer invented."""
    return -float(row["chair_i_unique"]["difference"]["value"])


def _recovered(row: dict[str, Any], ceiling: dict[str, float]) -> str:
    """The share of a ceiling, where recall is about the same and the ceiling is above nothing for certain.

    Its interval is that of the gain; the ceiling, which has one of its own, is taken as it is."""
    told = ceiling["low"] > 0 and row["recall"]["difference"]["value"] > -1.5
    if not told:
        return ""
    gap = row["chair_i_unique"]["difference"]
    share, low, high = (-gap[name] / (100 * ceiling["value"]) for name in ("value", "high", "low"))
    return f": {share:.0%} ({low:.0%} to {high:.0%})"


def gains(scores: dict[str, Any]) -> str:
    """What each published method gains on photographs, beside what can be gained: unique objects, both ways."""
    groups = json.loads(PUBLISHED.read_text("utf-8"))["groups"]
    published = {
        mode: {
            line["label"]: {name: m["value"] for name, m in line["metrics"].items()}
            for line in groups[n]["methods"]
        }
        for mode, n in PUBLISHED_GROUPS.items()
    }
    top = " | ".join(f"{how}: invented | gain | recall" for how in ("greedy", "sampled"))
    lines = [f"| photographs, unique objects | {top} |", "|---|" + "---|" * 6]
    bounds = [_share(scores["photo-test"]["ceiling"][mode]["recoverable"]) for mode in published]
    lines.append(
        "| **what the model knows better than it says** | "
        + " | ".join(f" | **{bound}** | as regular" for bound in bounds)
        + " |"
    )
    rows = {(r["method"], r["mode"]): r for r in scores["photo-test"]["rows"] if r["tokens"] == 64}
    for name, title in OURS.items():
        cells = [_gained(rows.get((name, mode))) for mode in published]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    cooler = _gained(rows["regular", COOLER[0]])
    lines.append(f"| regular, temperature {COOLER[0][1:]} | {_gained(None)} | {cooler} |")
    either = published["t1"] | published["greedy"]  # each has a method that the other has not
    for name in sorted(either, key=lambda name: either[name]["chair_i_unique"]):
        cells = [_published(metrics, name) for metrics in published.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _gained(row: dict[str, Any] | None) -> str:
    if row is None:
        return " |  | "
    return f"{row['chair_i_unique']['value']:.1f} | {_gain(row):+.1f} | {row['recall']['value']:.1f}"


def _published(metrics: dict[str, dict[str, float]], name: str) -> str:
    if name not in metrics:  # OPERA is not sampled, LVLMs-Saliency only sampled
        return _gained(None)
    invented, now = (metrics[each]["chair_i_unique"] for each in (name, "regular"))
    return f"{invented:.1f} | {now - invented:+.1f} | {metrics[name]['recall']:.1f}"


def _share(cell: dict[str, float]) -> str:
    return f"{100 * cell['value']:.1f} ({100 * cell['low']:.1f} to {100 * cell['high']:.1f})"


def blocks(scores: dict[str, Any]) -> dict[str, str]:
    """The generated parts of the page, by their marks."""
    found = {"ceiling": ceilings(scores), "gains": gains(scores), "targets": targets(scores)}
    found |= {"beside": beside(scores), "cost": costs(), "prototype": prototype.table(scores)}
    for part in TITLES:
        for mode in ("greedy", "t1"):
            found[f"{part} {mode}"] = table(scores[part]["rows"], mode)
            found[f"{part} {mode} 128"] = table(scores[part]["rows"], mode, 128)
        other = part.replace("test", "ablation")
        found[other] = ablations(scores, other)
    return found


def filled(text: str, parts: dict[str, str]) -> str:
    """The page with its generated parts replaced."""
    for name, content in parts.items():
        mark = re.compile(rf"(<!-- confirm {re.escape(name)} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = mark.sub(lambda match, content=content: f"{match[1]}{content}\n{match[2]}", text)
    return text


def averages(scores: dict[str, Any]) -> list[dict[str, Any]]:
    """What stands under the demonstration of each small model: sampled, as it is, and greedy."""
    return [{"model": model, "rows": _averaged(scores[part]["rows"])} for model, part in MODELS.items()]


def _averaged(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for row in measured:
        name = called(row["method"])
        if row["tokens"] != 64 or name is None or row["mode"] not in ("greedy", "t1", COOLER[0]):
            continue
        cell, mode = row["chair_i"], "greedy" if row["mode"] == "greedy" else "sampled"
        if row["mode"] == COOLER[0]:
            name = f"{name}, temperature {COOLER[0][1:]}"
        found = {"method": name.replace("`", ""), "mode": mode, "chair_i": cell["value"]}
        found |= {"chair_i_low": cell["low"], "chair_i_high": cell["high"], "chair_s": row["chair_s"]["value"]}
        counts = {"images": row["pictures"], "captions": row["pictures"] * row["seeds"]}
        rows.append(found | {"recall": row["recall"]["value"]} | counts)
    kept = [row for row in rows if row["method"] in AVERAGED]
    return sorted(kept, key=lambda row: (row["mode"] == "greedy", AVERAGED.index(row["method"])))


def main() -> None:
    scores = json.loads((HERE / "results" / "scores.json").read_text("utf-8"))
    PAGE.write_text(filled(PAGE.read_text("utf-8"), blocks(scores)), encoding="utf-8")
    AVERAGES.write_text(json.dumps(averages(scores), indent=1) + "\n", encoding="utf-8")
    pictures.draw(scores)


if __name__ == "__main__":
    main()
