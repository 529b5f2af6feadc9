"""Puts what `peer.py` measured into docs/speed.md, between its two marks.

python benchmarks/server/peer_page.py benchmarks/server/results/peer.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "speed.md"
BEGIN, END = "<!-- peer -->", "<!-- end of peer -->"
COLUMNS = {
    "`seewhen serve`": ("seewhen", "regular"),
    "with CAI": ("seewhen", "cai"),
    "`transformers serve`": ("transformers", "regular"),
    "`transformers serve --compile`": ("transformers compiled", "regular"),
}


def section(result: Mapping[str, Any]) -> str:
    """The text between the marks."""
    parts = result["parts"]
    asked = {(p["server"], p["method"], p["clients"]): p for p in parts if p["what"] == "http"}
    bare = {p["rows"]: p for p in parts if p["what"] == "generate"}
    most = max(bare)
    columns = {name: key for name, key in COLUMNS.items() if (*key, 1) in asked}
    one, all_ = ({name: asked.get((*key, n)) for name, key in columns.items()} for n in (1, most))
    rows = [
        ["1 client, ms per token", *(_number(p, "ms_per_token", ".2f") for p in one.values())],
        ["1 client, first token, ms", *(_first(p) for p in one.values())],
        [f"{most} clients, tokens per second", *(_number(p, "tokens_per_second", ",.0f") for p in all_.values())],
        [f"{most} clients, first token, ms", *(_first(p) for p in all_.values())],
    ]
    loop = [f"{bare[1]['ms_per_step']:.2f}", "", f"{bare[most]['tokens_per_second']:,.0f}", ""]
    lines = [["", *columns, "captured loop"], ["---"] * (len(columns) + 2)]
    lines += [[*row, last] for row, last in zip(rows, loop, strict=True)]
    versions = ", ".join(f"{name} {result['versions'][name]}" for name in ("torch", "transformers"))
    lengths = f"prompts of {result['prompt_tokens']} tokens, answers of {result['new_tokens']}"
    return "\n".join([
        f"{result['device']}, {versions}, {lengths}: `{result['command']}`",
        "([result](../benchmarks/server/results/peer.json)); medians, p95 in brackets.",
        "",
        *("| " + " | ".join(line) + " |" for line in lines),
        "",
        _goals(one, all_, bare, most),
    ])  # fmt: skip


def _goals(one: Mapping[str, Any], all_: Mapping[str, Any], bare: Mapping[int, Any], most: int) -> str:
    ours, many, peer = one["`seewhen serve`"], all_["`seewhen serve`"], all_.get("`transformers serve`")
    step = ours["ms_per_token"] / bare[1]["ms_per_step"]
    speed = many["tokens_per_second"]
    whole, steps = (100 * speed / bare[most][f"tokens_per_second{of}"] for of in ("", "_of_steps"))
    first = many["first_token_ms"]["median"] / ours["first_token_ms"]["median"]
    told = [
        f"One client pays {step:.2f} times the bare loop's step (goal: at most 1.15).",
        f"{most} clients get {whole:.0f} % of the bare loop with its prompts, {steps:.0f} % of its steps alone",
        "(goal: at least 70 %).",
        f"Their first token takes {first:.1f} times as long as one client's (goal: below 3).",
    ]
    if peer is not None:
        times, waited = speed / peer["tokens_per_second"], peer["unheard_waited_s"] or 0.0
        told += [
            "transformers answers requests with pictures one after the other, with `--continuous-batching` too:",
            f"{most} clients get {times:.3g} times as many tokens per second from us.",
            f"Of its clients {peer['unheard']} had heard nothing when they hung up after up to {waited:.0f} s;",
            f"{peer['answers']} had a whole answer.",
        ]
    return "\n".join(told)


def _number(part: Mapping[str, Any] | None, name: str, form: str) -> str:
    return "" if part is None or part[name] is None else format(part[name], form)


def _first(part: Mapping[str, Any] | None) -> str:
    times = None if part is None else part["first_token_ms"]
    return "" if times is None else f"{times['median']:.0f} ({times['p95']:.0f})"


def main() -> None:
    """Rewrite the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    before, rest = given.page.read_text().split(BEGIN)
    inside = section(json.loads(given.result.read_text()))
    given.page.write_text(f"{before}{BEGIN}\n{inside}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
