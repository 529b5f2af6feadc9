"""The tables of benchmarks/embedded.md from a report's JSON: `python summary.py report.json > tables.md`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seewhen.runs.grid import pipe_table


def cell(method: dict, metric: str, against: str = "regular") -> str:
    """A value with its interval, marked where the difference from regular decoding is real."""
    entry = method["metrics"][metric]
    mark = ""
    for c in method["comparisons"]:
        if c["against"] == against and c["metric"] == metric and c["verdict"] == "real":
            mark = " ▲" if c["better"] else " ▼"
    return f"{entry['value']:.1f}{mark} [{entry['low']:.1f}, {entry['high']:.1f}]"


def name(method: dict) -> str:
    """A method's label; ICT, which ran twice, by its strength instead of its file."""
    described = method["method"]
    if described["method"] != "ict":
        return method["label"]
    strength = described["parameters"]["image_strength"]
    return "ict" if strength == 8 else f"ict:image_strength={strength:g},object_strength={strength:g}"


def table(groups: list[dict], columns: list[tuple[str, dict, str]]) -> str:
    """One row per method; a column is a title, the facts that choose the group, and a metric."""
    found = []
    for _, facts, _ in columns:
        wanted = facts.items()
        chosen = [g for g in groups if wanted <= {k: g["facts"].get(k) for k in facts}.items()]
        found.append(max(chosen, key=lambda g: len(g["methods"])) if chosen else None)
    names: list[str] = []
    for group in found:
        names += [name(m) for m in group["methods"] if name(m) not in names] if group else []
    rows = []
    for row in names:
        cells = []
        for group, (_, _, metric) in zip(found, columns, strict=True):
            method = next((m for m in group["methods"] if name(m) == row), None) if group else None
            cells.append(cell(method, metric) if method else "—")
        rows.append((row, *cells))
    return pipe_table(("method", *(title for title, _, _ in columns)), rows)


def main() -> None:
    """Print all tables."""
    groups = json.loads(Path(sys.argv[1]).read_text())["groups"]
    for part in ("shifted", "test"):
        for mode in ("greedy", "sample"):
            facts = {"split": part, "decoding": mode}
            print(f"\n### {part}, {'greedy' if mode == 'greedy' else 'sampled at T = 1, five seeds'}\n")
            chair = {**facts, "benchmark": "chair", "max new tokens": 64}
            long = {**facts, "benchmark": "chair", "max new tokens": 128}
            pope, mme = {**facts, "benchmark": "pope"}, {**facts, "benchmark": "mme"}
            columns = [("CHAIR_s 64 ↓", chair, "chair_s"), ("CHAIR_i 64 ↓", chair, "chair_i")]
            columns += [("recall 64 ↑", chair, "recall"), ("length 64", chair, "length")]
            columns += [("CHAIR_s 128 ↓", long, "chair_s")]
            print(table(groups, columns))
            print()
            columns = [(f"POPE {s} ↑", pope, f"{part}-{s}/accuracy") for s in ("random", "popular", "adversarial")]
            columns += [("POPE all ↑", pope, "accuracy"), ("MME (800) ↑", mme, "hallucination")]
            print(table(groups, columns))


if __name__ == "__main__":
    main()
