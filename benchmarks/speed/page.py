"""Puts what a session measured into benchmarks/speed.md, between its two marks.

    python benchmarks/speed/page.py benchmarks/speed/results/h200-session/session.json

No number is written by hand there: goals are compared with the medians of the session's rounds, and what was not
measured is said to be so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
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


def goals(result: Mapping[str, Any]) -> str:
    """What was asked for beside what was measured."""
    wanted: list[tuple[str, str, str, str, float, Callable[[Cost], float | None]]] = [
        ("regular, ms per token", "llava, batch 1", "regular", "<", 4.5, lambda c: c.ms_per_token),
        ("CAI / regular", "llava, batch 1", "cai", "<", 1.05, lambda c: c.ratio),
        ("CAI with contrast / regular", "llava, batch 1", "cai:contrast=3", "<", 1.10, lambda c: c.ratio),
        ("CAI / regular, batch 8", "llava, batch 8", "cai", "<", 1.05, lambda c: c.ratio),
        ("prefill, regular, ms", "llava, batch 1", "regular", "<", 35.0, lambda c: c.prefill_ms),
        ("prefill, CAI / regular", "llava, batch 1", "cai", "<", 1.10, lambda c: c.prefill_ratio),
        ("MemVR / regular", "llava, second tier", "memvr", "<", 1.15, lambda c: c.ratio),
        ("LocoRE / regular", "llava, second tier", "locore", "<", 1.15, lambda c: c.ratio),
        ("SID / regular", "llava, second tier", "sid", "<", 1.15, lambda c: c.ratio),
        ("Qwen3.5-4B, share of the floor", "qwen3.5, batch 1", "regular", ">", 0.65, lambda c: c.floor_share),
        ("Qwen3.5-4B, CAI / regular", "qwen3.5, batch 1", "cai", "<", 1.06, lambda c: c.ratio),
        ("Qwen3.5-4B, CAI / regular, batch 8", "qwen3.5, batch 8", "cai", "<", 1.06, lambda c: c.ratio),
    ]  # fmt: skip
    published = _cost(result, "llava, the published way", "cai")
    if published is not None:
        name, slow = "CAI, times faster than the published way", published.ms_per_token
        wanted.append((name, "llava, batch 1", "cai", ">", 9.0, lambda c: slow / c.ms_per_token))
    rows = []
    for name, part, method, sign, goal, value in wanted:
        cost = _cost(result, part, method)
        got = None if cost is None else value(cost)
        rows.append((name, f"{'at most' if sign == '<' else 'at least'} {goal:g}", *_verdict(got, goal, sign)))
    for name, batch, variant, goal in (
        ("questions of a judge / regular", 1, "questions", 1.08),
        ("questions and a sentence taken back / regular", 1, "both", 1.35),
    ):
        found = result.get(f"llava, judge, batch {batch}", {}).get("found")
        got = None if found is None else found["ratios"][variant]["median"]
        rows.append((name, f"at most {goal:g}", *_verdict(got, goal, "<")))
    return table(("", "goal", "measured", ""), rows)


def _cost(result: Mapping[str, Any], part: str, method: str) -> Cost | None:
    return next((one for one in costs_of(result.get(part)) if one.method == method), None)


def _verdict(got: float | None, goal: float, sign: str) -> tuple[str, str]:
    if got is None:
        return "", "not measured"
    return f"{got:.3g}" if got >= 10 else f"{got:.3f}", "reached" if (got <= goal) == (
        sign == "<"
    ) else "not reached"


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
        "",
        goals(result),
    ]
    left_out = []
    for name, part in result.items():
        if name == "about":
            continue
        found = costs_of(part)
        if found:
            text += ["", f"**{name[0].upper()}{name[1:]}**", "", as_markdown(found).rstrip()]
        if "left out" in part or "failed" in part:
            left_out.append(f"{name}: {part.get('left out') or part['failed'].strip().splitlines()[-1]}")
    if "found" in result.get("llava, prefill", {}):
        agreement = result["llava, prefill"]["found"]["agreement"]
        largest = ", ".join(f"{name} {value:.2g}" for name, value in agreement.items())
        text += ["", "**Time to the first token**", "", prefill(result["llava, prefill"]), ""]
        text += [f"Largest difference of logits between replayed and uncaptured prompts: {largest}."]
    text += ["", "**A judge**", "", judged(result)]
    if left_out:
        text += ["", "Not measured: " + "; ".join(left_out) + "."]
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
