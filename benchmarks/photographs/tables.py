"""The tables of docs/evidence.md, from the reports of the study.

Marks are those of the report: ▲ ▼ where a difference from regular decoding is real after correction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from photographs.settings import ABLATIONS, TRIED, Setting
from photographs.wanted import TILT, make
from seewhen.runs.grid import pipe_table
from seewhen.runs.wording import title as as_written

Report = Mapping[str, Any]
Row = Mapping[str, Any]  # a method of a report
Key = tuple[str, str, int]  # benchmark, decoding, tokens

GREEDY, SAMPLED = "greedy", "sample"
TOLD, ASKED = ("chair", GREEDY, 64), ("pope", GREEDY, 8)
TOLD_LONG, TOLD_SAMPLED = ("chair", GREEDY, 128), ("chair", SAMPLED, 64)
NOTHING = "–"


def groups(report: Report) -> dict[Key, dict[str, Any]]:
    """The report's groups by benchmark, decoding and tokens."""
    found = {}
    for group in report["groups"]:
        facts = group["facts"]
        found[facts["benchmark"], facts["decoding"], facts["max new tokens"]] = group
    return found


# What the study calls CAI has a contrast of 3.
_STUDY = {name: name.replace("cai", "cai:contrast=3").replace("-", ":") for name in ("cai", TILT, "cai-contrast")}


def title(name: str) -> str:
    """A method as the tables show it, which any command takes; where directions lay says nothing."""
    return as_written(re.sub(r":directions=[^:,+]*", "", name))


def label(row: Row) -> str:
    """As in the report."""
    return title(str(row["label"]))


def mark(row: Row, metric: str, against: str = "regular") -> str:
    """Whether a difference is real, and for the better."""
    for comparison in row["comparisons"]:
        if (comparison["against"], comparison["metric"], comparison["verdict"]) == (against, metric, "real"):
            return " ▲" if comparison["better"] else " ▼"
    return ""


def value(row: Row | None, metric: str) -> str:
    """A number, marked where its difference from regular decoding is real."""
    if row is None or metric not in row["metrics"]:
        return NOTHING
    return f"{row['metrics'][metric]['value']:.1f}{mark(row, metric)}"


def words(row: Row | None) -> str:
    """How long the captions are, punctuation left out."""
    return NOTHING if row is None else f"{row['metrics']['words']['value']:.1f}"


def beyond_the_cut(row: Row | None, metric: str) -> str:
    """The difference from the plausibility cut alone."""
    if row is None:
        return NOTHING
    for comparison in row["comparisons"]:
        if (comparison["against"], comparison["metric"]) == ("min-p", metric):
            return f"{comparison['value']:+.1f}{mark(row, metric, 'min-p')}".replace("-", "−")
    return NOTHING


def by_label(report: Report, keys: Iterable[Key]) -> dict[str, dict[Key, Row]]:
    """The methods of some groups, in the order of the report."""
    found: dict[str, dict[Key, Row]] = {}
    known = groups(report)
    for key in keys:
        for row in known[key]["methods"]:
            found.setdefault(label(row), {})[key] = row
    return found


def greedy_table(report: Report) -> str:
    """Every method that decodes greedily (or by beams)."""
    kinds = ("random", "popular", "adversarial")
    head = ("method", "CHAIR_S", "CHAIR_I", "unique", "recall", "words", "CHAIR_I, 128", "POPE random", *kinds[1:])
    rows = []
    for name, found in by_label(report, (TOLD, TOLD_LONG, ASKED)).items():
        told, asked = found.get(TOLD), found.get(ASKED)
        cells = [value(told, metric) for metric in ("chair_s", "chair_i", "chair_i_unique", "recall")]
        cells += [words(told), value(found.get(TOLD_LONG), "chair_i")]
        cells += [value(asked, f"coco-{kind}/accuracy") for kind in kinds]
        rows.append([name, *cells])
    return pipe_table(head, rows)


def corrected_table(report: Report) -> str:
    """POPE with RePOPE's labels: greedy in all and by kind, F1 and MCC; sampled accuracy beside POPE's own."""
    kinds = ("random", "popular", "adversarial")
    head = ("method", "POPE", "RePOPE", *kinds, "F1", "MCC", "sampled, POPE", "sampled, RePOPE", "− min-p")
    sampled = ("pope", SAMPLED, 8)
    rows = []
    for name, found in by_label(report, (ASKED, sampled)).items():
        greedy, drawn = found.get(ASKED), found.get(sampled)
        by_kind = [f"coco-{kind}/repope_accuracy" for kind in kinds]
        cells = [value(greedy, m) for m in ("accuracy", "repope_accuracy", *by_kind, "repope_f1", "repope_mcc")]
        cells += [value(drawn, "accuracy"), value(drawn, "repope_accuracy")]
        rows.append([name, *cells, beyond_the_cut(drawn, "repope_accuracy")])
    return pipe_table(head, rows)


CUT = ("chair_s", "chair_i", "chair_i_unique", "recall", "words")


def cut_table(report: Report, tuned: Report, key: Key) -> str:
    """Regular captions cut off, and what is left of each method that shortens captions beside them."""
    published, chosen = (groups(one)[key]["cut_off"] for one in (report, tuned))
    head = ("captions", "CHAIR_S", "CHAIR_I", "unique", "recall", "words")
    rows = [
        [f"Regular, cut off after {count}", *(f"{found[metric]:.1f}" for metric in CUT)]
        for count, found in published["regular"].items()
    ]
    for control, said in ((published, ""), (chosen, ", tuned")):
        for name, one in control["methods"].items():
            if said and name in ("min-p", "pai"):  # as published, so they are there already
                continue
            called = f"{title(name)}{said}" if said else label({"label": name})
            beside = f"{called} − Regular cut off after {one['sentences']}"
            rows.append([beside, *(_beside(one["differences"][metric], metric) for metric in CUT)])
    return pipe_table(head, rows)


def _beside(difference: Mapping[str, Any], metric: str) -> str:
    """A difference, marked where its interval leaves out zero and its corrected p-value is below 0.05."""
    real = difference["p"] < 0.05 and (difference["low"] > 0 or difference["high"] < 0)
    better = (difference["value"] > 0) == (metric == "recall")
    shown = "" if not real or metric == "words" else " ▲" if better else " ▼"
    return f"{difference['value']:+.1f}{shown}".replace("-", "−")


def sampled_table(report: Report) -> str:
    """Every method that samples, and what is left of its effect beside the cut alone."""
    long, asked = ("chair", SAMPLED, 128), ("pope", SAMPLED, 8)
    head = ("method", "CHAIR_I", "− min-p", "recall", "CHAIR_I, 128", "− min-p", "POPE accuracy", "− min-p")
    rows = []
    for name, found in by_label(report, (TOLD_SAMPLED, long, asked)).items():
        told, longer, answer = (found.get(key) for key in (TOLD_SAMPLED, long, asked))
        cells = [value(told, "chair_i"), beyond_the_cut(told, "chair_i"), value(told, "recall")]
        cells += [value(longer, "chair_i"), beyond_the_cut(longer, "chair_i")]
        rows.append([name, *cells, value(answer, "accuracy"), beyond_the_cut(answer, "accuracy")])
    return pipe_table(head, rows)


def row_of(group: Mapping[str, Any], name: str, setting: Setting) -> Row | None:
    """The run of a method with a setting, wherever its directions lay."""

    def facts(method: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return method["method"], {**method.get("parameters", {}), "directions": ""}

    wanted = facts(make(name, Path(), setting).to_json())
    return next((row for row in group["methods"] if facts(row["method"]) == wanted), None)


def in_words(setting: Setting) -> str:
    return ", ".join(f"{name} {inner}".replace("_", " ") for name, inner in setting.items()) or "published"


def tried_table(report: Report, chosen: Mapping[str, Setting]) -> str:
    """What was tried on validation photographs, and what was chosen."""
    known = groups(report)
    rows = []
    for name, settings in {"regular": ({},), **TRIED}.items():
        for place, setting in enumerate(settings):
            told, asked = (row_of(known[key], name, setting) for key in (TOLD, ASKED))
            said = (
                "" if name == "regular" else in_words(setting) + (" (published)" if setting and not place else "")
            )
            said = f"**{said}**" if chosen.get(name) == setting else said
            cells = [value(told, "chair_i"), value(told, "recall"), value(asked, "accuracy")]
            rows.append([title(name), said, *cells])
    return pipe_table(("method", "setting", "CHAIR_I", "recall", "POPE accuracy"), rows, 2)


def tuned_table(report: Report, chosen: Mapping[str, Setting]) -> str:
    """Test photographs, each method with the setting that was chosen on others."""
    known = groups(report)
    head = ("method", "setting", "CHAIR_S", "CHAIR_I", "recall", "POPE accuracy", "sampled CHAIR_I", "− min-p")
    rows = []
    for name, setting in {"regular": {}, "min-p": {}, **chosen}.items():
        told, asked, sampled = (row_of(known[key], name, setting) for key in (TOLD, ASKED, TOLD_SAMPLED))
        cells = [value(told, metric) for metric in ("chair_s", "chair_i", "recall")]
        cells += [value(asked, "accuracy"), value(sampled, "chair_i"), beyond_the_cut(sampled, "chair_i")]
        said = "" if name in ("regular", "min-p") else in_words(without_contrast(setting))
        rows.append([title(name.removesuffix("-attention")), said, *cells])
    return pipe_table(head, rows, 2)


def without_contrast(setting: Setting) -> Setting:
    """The tilt alone is a contrast of one; that goes without saying."""
    return {name: inner for name, inner in setting.items() if (name, inner) != ("contrast", 1.0)}


FACTORS = {
    "base": "CAI", "l_s": "when: first layer", "gamma": "when: threshold", "relevance": "where",
    "tilt": "how: form", "strength": "how: strength", "lambda": "contrast", "cut": "contrast, cut",
}  # fmt: skip


def _last(setting: Setting) -> float:
    """What is varied comes last."""
    number = list(setting.values())[-1]
    return number if isinstance(number, int | float) else 0.0


def ablation_table(report: Report) -> str:
    """CAI with one thing changed, factor by factor."""
    known = groups(report)

    def cells(name: str, setting: Setting) -> list[str]:
        told, asked = (row_of(known[key], name, setting) for key in (TOLD, ASKED))
        numbers = [value(told, metric) for metric in ("chair_s", "chair_i", "recall")]
        return [*numbers, words(told), value(asked, "accuracy")]

    rows = [["Regular", "", *cells("regular", {})]]
    for factor, said in FACTORS.items():
        for setting in sorted((s for f, s in ABLATIONS if f == factor), key=_last):
            changed = in_words(without_contrast(setting)) if factor != "base" else ""
            rows.append([said, changed, *cells("cai", setting)])
            said = ""
    return pipe_table(("factor", "changed", "CHAIR_S", "CHAIR_I", "recall", "words", "POPE accuracy"), rows, 2)


def cost_table(cpu: Mapping[str, Any], gpu: Mapping[str, Any]) -> str:
    """Ratios to regular decoding, the cheapest first."""
    ratios = [{name: entry["ratio"] for name, entry in machine["methods"].items()} for machine in (cpu, gpu)]
    names = sorted(ratios[1], key=lambda name: ratios[0].get(name, 0.0))
    rows = [
        [title(_STUDY.get(name, name)), *(f"{r[name]:.2f}" if name in r else NOTHING for r in ratios)]
        for name in names
    ]
    return pipe_table(("method", "one thread of a CPU", "H200"), rows)
