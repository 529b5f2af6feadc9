"""Tables, predictions, maps and the package's data from what the ladder found.

    python -m ladder.page FOUND --out benchmarks/ladder/results

FOUND is the unpacked ladder.tar.xz.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ladder import picture
from ladder.measures import signal
from ladder.predicting import correlations, effects_of, leave_one_out
from ladder.recovering import by_model, by_rung, cut_by_rung
from ladder.rungs import PACKAGED
from ladder.stand_in import Response, distance
from ladder.summary import METHODS, WAYS, summary
from ladder.tasks import CHOICE
from seewhen.runs.grid import pipe_table

# The packaged model's responses to the rivals, shifted scenes, sampled: the tables of benchmarks/embedded.md.
ELSEWHERE = {
    "pope vcd": 81.5 - 80.5,
    "pope pai": 79.7 - 80.5,
    "pope only": 82.1 - 80.5,
    "chair_s vcd": 100 * (48.7 / 58.9 - 1),
    "chair_i vcd": 100 * (18.4 / 21.2 - 1),
    "chair_s pai": 100 * (71.6 / 58.9 - 1),
    "chair_i pai": 100 * (25.3 / 21.2 - 1),
    "chair_s only": 100 * (50.5 / 58.9 - 1),
    "chair_i only": 100 * (18.1 / 21.2 - 1),
}
PACKAGE = Path("src/seewhen/runs/data/ladder.json")
Entry = Mapping[str, Any]


def cell(found: Sequence[float] | None) -> str:
    """A difference with its interval, marked where it excludes zero."""
    if not found:
        return "—"
    value, low, high = found
    return f"{value:+.1f}{'*' if low > 0 or high < 0 else ''} ({low:+.1f}, {high:+.1f})"


def plain(found: Sequence[float] | None) -> str:
    return "—" if not found else f"{found[0]:.1f} ({found[1]:.1f}, {found[2]:.1f})"


def levels(entries: Sequence[Entry]) -> str:
    """What each rung is like before any method."""
    head = ("rung", "models", "CHAIR_i greedy", "CHAIR_i sampled", "recall greedy", "POPE greedy", "POPE sampled",
            "recoverable greedy", "recoverable sampled")  # fmt: skip
    rows = []
    for entry in entries:
        greedy, sampled = (entry["regular"][way] for way in WAYS)
        gains = [entry["ceiling"][way].get("recoverable") for way in WAYS]
        shown = [
            greedy.get("chair_i"),
            sampled.get("chair_i"),
            greedy.get("recall"),
            greedy.get("pope"),
            sampled.get("pope"),
        ]
        rows.append((entry["name"], str(len(entry["models"])), *map(plain, shown), *map(plain, gains)))
    return pipe_table(head, rows)


def effects(entries: Sequence[Entry], way: str, metric: str) -> str:
    """Rungs by methods: differences from regular decoding."""
    names = [name for name in METHODS if any(metric in e["effects"].get(name, {}).get(way, {}) for e in entries)]
    rows = [
        (e["name"], *(cell(e["effects"].get(name, {}).get(way, {}).get(metric)) for name in names))
        for e in entries
    ]
    return pipe_table(("rung", *names), rows)


def beyond(entries: Sequence[Entry]) -> str:
    """What methods do beyond their plausibility cut, sampled."""
    names = [name for name in METHODS if any(name in entry["beyond"] for entry in entries)]
    rows = [(e["name"], *(cell(e["beyond"].get(name, {}).get("chair_i")) for name in names)) for e in entries]
    return pipe_table(("rung", *names), rows)


def recovered(entries: Sequence[Entry], way: str) -> str:
    """How much of what a model knows better than it says each method takes back, percent, where that is surely
    something. Above 100: it also says less of what is there, or the ceiling is too low."""
    names = [name for name in METHODS if any(way in e["effects"].get(name, {}) for e in entries)]
    rows = []
    for entry in entries:
        gain = entry["ceiling"][way].get("recoverable")
        if not gain or gain[1] <= 0:
            continue
        found = [entry["effects"].get(name, {}).get(way, {}).get("chair_i") for name in names]
        shares = ["—" if each is None else f"{-100 * each[0] / gain[0]:.0f}" for each in found]
        rows.append((entry["name"], f"{gain[0]:.1f}", *shares))
    return pipe_table(("rung", "recoverable, points", *names), rows)


def asking(rows: Sequence[Entry]) -> str:
    """How much `confirm` recovers on rungs with five points or more to recover, over the same models."""
    head = (
        "rung",
        "method",
        "models",
        "recoverable, points",
        "recovered, points",
        "change of recall",
        "share, percent",
    )
    shown = []
    for row in rows:
        points = (estimate(row[name], 1) for name in ("recoverable", "recovered", "recall"))
        named = (row["rung"], row["method"], str(len(row["models"])))
        shown.append((*named, *points, estimate(row["share"], 0)))
    return pipe_table(head, shown)


def cutting(rows: Sequence[Entry]) -> str:
    """A control beside it: the same rungs' regular captions, cut off."""
    shown = [
        (row["rung"], str(len(row["models"])), str(row["sentences"]), cell(row["chair_i"]), cell(row["recall"]))
        for row in rows
    ]
    return pipe_table(("rung", "models", "sentences", "CHAIR_i", "recall"), shown)


def estimate(found: Sequence[float], digits: int) -> str:
    """A value with its interval."""

    def shown(value: float) -> str:
        return "above 300" if value > 300 else f"{value:.{digits}f}"

    value, low, high = map(shown, found)
    return f"{value} ({low}, {high})"


def predictions(entries: Sequence[Entry]) -> tuple[str, dict[str, Any]]:
    """For each method and way: the strongest rank correlations, and the error of predicting each rung."""
    known = {entry["name"]: entry["diagnostics"] for entry in entries}
    head = ("method", "way", "rungs", "strongest rank correlations (p, corrected)", "error, points", "of the mean")
    rows, kept = [], {}
    for method in METHODS:
        for way in WAYS:
            found = effects_of(entries, method, way)
            ranked, told = correlations(found, known), leave_one_out(found, known, way)
            if not ranked:
                continue
            shown = ", ".join(f"{c.diagnostic} {c.rho:+.2f} ({c.p:.2f})" for c in ranked[:3])
            errors = ("—", "—") if told is None else (f"{told.error:.1f}", f"{told.error_of_mean:.1f}")
            rows.append((method, way, str(len(found)), shown, *errors))
            kept[f"{method} {way}"] = {
                "correlations": [asdict(c) for c in ranked],
                "prediction": None if told is None else asdict(told),
            }
    return pipe_table(head, rows), kept


def choice(folder: Path) -> Iterator[str]:
    """The stand-in as it was chosen."""
    if not (folder / CHOICE).is_file():
        yield "No stand-in was chosen."
        return
    found = json.loads((folder / CHOICE).read_text("utf-8"))
    yield f"Chosen: **{found['chosen']}**, by {', '.join(found['used'])}."
    yield ""
    rows = [(name, f"{value:.2f}") for name, value in found["distances"].items()]
    yield pipe_table(("rung", "distance"), rows)
    if PACKAGED not in found["distances"]:
        quantities = {f"auroc {name}": value for name, value in signal(folder, PACKAGED).items()}
        packaged = Response(100.0, 100.0, ELSEWHERE | quantities)
        yield ""
        yield (
            f"The packaged model was not asked with the rivals here. By benchmarks/embedded.md (150 other scenes, "
            f"five seeds) and its own areas its distance is {distance(packaged, tuple(found['used'])):.2f}."
        )
    if found["unable"]:
        yield f"\nNot able to stand in: {', '.join(found['unable'])}."


def package(entries: Sequence[Entry], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What `seewhen diagnose` sets a user's model beside."""
    rungs = [{name: entry[name] for name in ("name", "diagnostics", "effects", "regular")} for entry in entries]
    about = (
        "Small LLaVAs on drawn scenes; differences from regular decoding: value, low, high (95 %, over scenes)."
    )
    return {"about": about, "device": facts.get("device"), "versions": facts.get("versions"), "rungs": rungs}


def page(folder: Path, entries: Sequence[Entry], asked: Mapping[str, Sequence[Entry]], table: str) -> str:
    """All tables as Markdown. `asked`: what `confirm` recovers, and the control; `table`: what predicts."""
    parts = ["# What the ladder found", "", "Intervals: 95 %, bootstrap over scenes, paired; * excludes zero.", ""]
    parts += ["## The rungs", "", levels(entries), "", "## The stand-in", "", *choice(folder), ""]
    for way in WAYS:
        for metric, title in (
            ("chair_i", "CHAIR_i"),
            ("recall", "recall"),
            ("f1", "F1"),
            ("pope", "POPE accuracy"),
        ):
            parts += [
                f"## {title}, {way}: difference from regular decoding, points",
                "",
                effects(entries, way, metric),
                "",
            ]
    parts += ["## CHAIR_i, sampled: difference from min-p, points", "", beyond(entries), ""]
    for way in WAYS:
        title = f"## How much of the recoverable share each method takes back, {way}, percent"
        parts += [title, "", recovered(entries, way), ""]
    for way in WAYS:
        title = f"## What `confirm` recovers where five points or more are to be recovered, {way}"
        parts += [
            title,
            "",
            "Objects counted once a caption; the same models on both sides.",
            "",
            asking(asked[way]),
            "",
        ]
    title = "## The same for single models with five points or more, four drafts, greedy"
    parts += [title, "", asking(asked["models"]), ""]
    title = "## The same rungs' regular captions cut off after some sentences, greedy: difference, points"
    parts += [title, "", cutting(asked["cut"]), ""]
    parts += ["## What predicts it", "", table, ""]
    return "\n".join(parts)


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("found", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--package", type=Path, default=PACKAGE, help="where the package's data goes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    entries = summary(options.found)
    facts = json.loads((options.found / "facts.json").read_text("utf-8"))
    asked = {way: by_rung(options.found, way) for way in WAYS}
    asked |= {"models": by_model(options.found), "cut": cut_by_rung(options.found)}
    table, kept = predictions(entries)
    (options.out / "tables.md").write_text(page(options.found, entries, asked, table), encoding="utf-8")
    files = {"ladder": {"facts": facts, "rungs": entries}, "predictions": kept, "recovered": asked}
    for name, content in files.items():
        (options.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if (options.found / CHOICE).is_file():
        (options.out / CHOICE).write_text((options.found / CHOICE).read_text("utf-8"), encoding="utf-8")
    for way in WAYS:
        picture.draw(entries, options.out / f"map-{way}.png", way)
    options.package.write_text(json.dumps(package(entries, facts), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
