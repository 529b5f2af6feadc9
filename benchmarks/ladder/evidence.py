"""The ladder's picture and tables in docs/evidence.md, from results/: `python -m ladder.evidence`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ladder.page import estimate
from ladder.picture import overview
from scale.plan import filled
from seewhen.runs.grid import pipe_table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "evidence.md"
PICTURE = PAGE.parent / "images" / "evidence" / "ladder.png"
RESULTS = HERE / "results"
STAND_IN = "many-mild-long"
GOAL = 70.0  # percent of what is recoverable, at recall within a point
ALLOWED = 1.0  # points of recall
CALLED = {
    "cooler": "regular, a third of the temperature",
    "min-p": "min-p (the cut alone)",
    "vcd": "VCD",
    "pai": "PAI",
    "only": "ONLY",
    "icd": "ICD",
    "m3id": "M3ID",
    "dola": "DoLa",
    "opera": "OPERA",
    "tilt": "CAI's tilt alone",
    "tilt exponential": "the same, exponential with a budget",
    "contrast": "CAI's contrast alone (with the cut)",
    "cai": "CAI, adaptive, contrast 3",
    "cai reference": "CAI, reference",
    "cai paper": "CAI, paper",
    "confirm asking": "`confirm`, asking alone",
    "confirm": "`confirm`, first fit",
    "confirm chosen": "`confirm`, no drafts",
    "confirm 2 drafts": "`confirm`, 2 drafts",
    "confirm 4 drafts": "`confirm`, 4 drafts",
}
FORMS = ("confirm 4 drafts", "confirm 2 drafts", "confirm chosen", "confirm")  # of `confirm`, the strongest first
Interval = Sequence[float]


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def counts(found: Sequence[Interval]) -> tuple[int, int]:
    """On how many rungs something is surely lower, and surely higher, by intervals that are not corrected."""
    return sum(high < 0 for _, _, high in found), sum(low > 0 for _, low, _ in found)


def over_rungs(rungs: Sequence[Mapping[str, Any]], method: str, way: str, metric: str) -> list[Interval]:
    """The differences of a method from regular decoding, a rung each."""
    found = (rung["effects"].get(method, {}).get(way, {}) for rung in rungs)
    return [each[metric] for each in found if metric in each]


def beside_cut(rungs: Sequence[Mapping[str, Any]], method: str, metric: str = "chair_i") -> list[Interval]:
    """The differences from the cut alone, sampled, a rung each."""
    return [rung["beyond"][method][metric] for rung in rungs if method in rung["beyond"]]


def _methods() -> Iterator[tuple[str, ...]]:
    rungs = read("ladder")["rungs"]
    for method, called in CALLED.items():
        greedy, sampled = (over_rungs(rungs, method, way, "chair_i") for way in ("greedy", "sampled"))
        if max(len(greedy), len(sampled)) < 3:  # two drafts: tried twice
            continue
        f1 = [_counted(over_rungs(rungs, method, way, "f1")) for way in ("greedy", "sampled")]
        yield (
            called,
            str(max(len(greedy), len(sampled))),
            *(_counted(greedy, ends=True), f1[0]),
            *(_counted(sampled, ends=True), f1[1]),
            *(
                _counted(beside_cut(rungs, method, metric), ends=metric == "chair_i")
                for metric in ("chair_i", "f1")
            ),
        )


def _counted(found: Sequence[Interval], ends: bool = False) -> str:
    if not found:
        return ""
    lower, higher = counts(found)
    values = [value for value, _, _ in found]
    return f"{lower} / {higher}" + (f" ({_signed(min(values))} to {_signed(max(values))})" if ends else "")


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _change(found: Interval) -> str:
    value, low, high = map(_signed, found)
    return f"{value} ({low} to {high})"


def _estimate(found: Interval, digits: int) -> str:
    return estimate(found, digits).replace("-", "−").replace(", ", " to ")


def _by_form() -> list[dict[str, Any]]:
    """What was recovered greedily: rungs with most to recover first, of each the strongest form first."""
    found = read("recovered")["greedy"]
    most: dict[str, float] = {}
    for row in found:
        most[row["rung"]] = max(most.get(row["rung"], 0.0), row["recoverable"][0])
    return sorted(found, key=lambda row: (-most[row["rung"]], FORMS.index(row["method"])))


def verdict(share: Interval, recall: Interval) -> str:
    """Whether the goal is reached, whether that is certain, and at which price."""
    value, low, high = share
    words = "reached" if value >= GOAL else "missed"
    words += ", not certain" if low < GOAL <= high else ""
    lost = -recall[0]
    return words + (f", for {lost:.1f} points of recall" if value >= GOAL and lost > ALLOWED else "")


def _recovered() -> Iterator[tuple[str, ...]]:
    for row in _by_form():
        yield (
            f"`{row['rung']}`, {CALLED[row['method']].removeprefix('`confirm`, ')}",
            str(len(row["models"])),
            *(_estimate(row[name], 1) for name in ("recoverable", "recovered", "recall")),
            _estimate(row["share"], 0),
            verdict(row["share"], row["recall"]),
        )


def _cut() -> Iterator[tuple[str, ...]]:
    rungs = {rung["name"]: rung for rung in read("ladder")["rungs"]}
    cut = {(row["rung"], row["sentences"]): row for row in read("recovered")["cut"]}
    for name in dict.fromkeys(row["rung"] for row in _by_form()):
        effects = rungs[name]["effects"]
        forms = [effects[form]["greedy"] for form in ("confirm 4 drafts", "confirm chosen")]
        shown = (*forms, cut[name, 3], cut[name, 2])
        yield (f"`{name}`", *(f"{_change(each['chair_i'])} at {_signed(each['recall'][0])}" for each in shown))


def _stand_in() -> Iterator[tuple[str, ...]]:
    rung = next(rung for rung in read("ladder")["rungs"] if rung["name"] == STAND_IN)
    rows = (
        "min-p",
        "tilt",
        "contrast",
        "cai",
        "cai reference",
        "cai paper",
        "vcd",
        "pai",
        "only",
        "dola",
        "confirm",
    )
    for method in rows:
        found = rung["effects"][method]["sampled"]
        shown = (
            _change(found[name]) if name in found else "" for name in ("chair_s", "chair_i", "recall", "pope")
        )
        yield (CALLED[method], str(len(rung["asked"][method])), *shown)


def tables() -> dict[str, str]:
    """By the mark in the page."""
    each = ("CHAIR_i lower / higher (from, to)", "F1 lower / higher")
    ways = ("greedy", "sampled", "sampled, beside min-p")
    methods = ("method", "rungs", *(f"{way}: {what}" for way in ways for what in each))
    recovered = ("greedy", "models", "recoverable", "recovered", "change of recall", "share, percent")
    goal = f"goal: at least {GOAL:.0f} %"
    cut = ("greedy", "4 drafts", "no drafts", "cut after three sentences", "cut after two")
    stand_in = ("sampled, difference from regular", "models", "CHAIR_s", "CHAIR_i", "recall", "POPE accuracy")
    return {
        "ladder methods": pipe_table(methods, list(_methods())),
        "ladder recovered": pipe_table((*recovered, goal), list(_recovered())),
        "ladder cut": pipe_table(cut, list(_cut())),
        "ladder stand-in": pipe_table(stand_in, list(_stand_in())),
    }


def main() -> None:
    overview(read("ladder")["rungs"], PICTURE)
    PAGE.write_text(filled(PAGE.read_text("utf-8"), tables()), "utf-8")


if __name__ == "__main__":
    main()
