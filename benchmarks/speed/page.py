"""Puts what a session measured into benchmarks/speed.md, between its two marks.

    python benchmarks/speed/page.py benchmarks/speed/results/h200-session/session.json

No number is written by hand there, and what was not measured is said to be so. Goals are in goals.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from seewhen.speed.bench import as_markdown
from seewhen.speed.measure import Cost

PAGE = Path(__file__).parents[1] / "speed.md"
BEGIN, END = "<!-- session -->", "<!-- end of session -->"
FIELDS = {field.name for field in dataclasses.fields(Cost)}


def costs_of(part: Mapping[str, Any] | None) -> list[Cost]:
    """The rows of a part that was measured."""
    rows = (part or {}).get("found", {}).get("costs", [])
    return [Cost(**{k: tuple(v) if isinstance(v, list) else v for k, v in r.items() if k in FIELDS}) for r in rows]


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Markdown."""
    header = list(header)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(map(str, row)) + " |" for row in rows)])


def prefill(part: Mapping[str, Any] | None) -> str:
    """Time to the first token by way and method, and where it goes."""
    rows = (part or {}).get("found", {}).get("rows", [])
    names = ("before", "tower", "merge", "decoder", "head")
    return table(
        (
            "way",
            "method",
            "chosen ms",
            "heard ms",
            "host ms",
            "ratio",
            *(f"{name}, device / host" for name in names),
        ),
        (
            (
                row["way"],
                row["method"],
                *(f"{row[what + ' ms']:.1f}" for what in ("chosen", "heard", "host")),
                f"{row['ratio'][0]:.3f} ({row['ratio'][1]:.3f}-{row['ratio'][2]:.3f})",
                *(f"{row['parts'][name]['device']:.1f} / {row['parts'][name]['host']:.1f}" for name in names),
            )
            for row in rows
        ),
    )


def judged(result: Mapping[str, Any]) -> str:
    """A judge's ratios at both batch sizes."""
    parts = {batch: result.get(f"llava, judge, batch {batch}", {}).get("found") for batch in (1, 8)}
    variants = next((list(found["ratios"]) for found in parts.values() if found), [])
    cells = {
        (name, batch): ""
        if found is None
        else "{median:.2f} ({low:.2f} to {high:.2f})".format(**found["ratios"][name])
        for name in variants
        for batch, found in parts.items()
    }
    return table(("", "batch 1", "batch 8"), ((n, cells[n, 1], cells[n, 8]) for n in variants if n != "regular"))


def section(result: Mapping[str, Any], source: str) -> str:
    """The text between the marks."""
    about = result["about"]
    text = [
        f"{about['device']}, random weights in the published shapes, one process, one run: `{about['command']}`",
        f"([result]({source}); versions and machine are in it). {about['read_bandwidth'] / 1e12:.2f} TB/s read.",
    ]
    left_out = []
    for name, part in result.items():
        if name == "about":
            continue
        found = costs_of(part)
        if found:
            text += ["", f"**{name[0].upper()}{name[1:]}**", "", as_markdown(found).rstrip()]
        if "left out" in part:
            left_out.append(name)
        elif "failed" in part:
            left_out.append(f"{name} (failed: {part['failed'].strip().splitlines()[-1]})")
    if "found" in result.get("llava, prefill", {}):
        agreement = result["llava, prefill"]["found"]["agreement"]
        largest = ", ".join(f"{name} {value:.2g}" for name, value in agreement.items())
        text += ["", "**Time to the first token**", "", prefill(result["llava, prefill"]), ""]
        text += [f"Largest difference of logits between replayed and uncaptured prompts: {largest}."]
    text += ["", "**A judge**", "", judged(result)]
    if left_out:
        text += ["", "Not measured in this run: " + "; ".join(left_out) + "."]
    return "\n".join(text)


def main() -> None:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    page = given.page.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    source = given.result.resolve()
    source = source.relative_to(PAGE.parent) if source.is_relative_to(PAGE.parent) else Path(source.name)
    inside = section(json.loads(given.result.read_text()), source.as_posix())
    given.page.write_text(f"{before}{BEGIN}\n{inside}\n{END}{after}")


if __name__ == "__main__":
    main()
