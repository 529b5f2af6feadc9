"""Writes the table of goals into benchmarks/speed.md, between its two marks: `python benchmarks/speed/goals.py`.

Every number comes from a committed result, and a test compares the page with what this would write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "speed.md"
BEGIN, END = "<!-- goals: written by benchmarks/speed/goals.py -->", "<!-- end of goals -->"

LANES = "server/results/lanes.json"
WAYS = {"packaged": "runs/ways.json", "photo": "runs/ways-photo.json"}
FORKS = "speed/results/h200-forks.json"
LAYERS = "speed/results/h200-layers.json"
SESSION = "speed/results/h200-session/session.json"
JUDGE, JUDGE_OF_8 = "speed/results/h200-confirm-ahead.json", "speed/results/h200-confirm-cost.json"
ON_A_CPU = "confirm/results/cost-cpu.json"
DESCRIBE, DEMO = "speed/results/cpu-describe.json", "speed/results/cpu-demo-own.json"


@cache
def result(name: str) -> Any:
    """A committed result."""
    return json.loads((ROOT / name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Row:
    """A goal and what was measured; `most` or `least` is the limit."""

    item: int  # of the list of goals
    what: str
    source: str = ""
    value: float | None = None
    most: float | None = None
    least: float | None = None
    form: str = "{:.2f}"
    shown: str = ""  # instead of the value alone

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        if not self.source:
            return str(self.item), self.what, "", "", "not measured"
        limit = self.most if self.most is not None else self.least
        goal = ""
        if limit is not None:
            goal = ("at most " if self.most is not None else "at least ") + self.form.format(limit)
        measured = self.shown or self.form.format(self.value)
        return str(self.item), self.what, goal, f"[{measured}]({self.source})", self.verdict

    @property
    def verdict(self) -> str:
        """Whether the goal was reached."""
        if self.value is None or (self.most is None and self.least is None):
            return "measured"
        inside = self.value <= self.most if self.most is not None else self.value >= (self.least or 0.0)
        return "reached" if inside else "**missed**"


def server() -> Iterator[Row]:
    """Captured steps in the server; CAI over HTTP beside the bare loop, in one run."""
    parts = {
        (part["what"], part.get("way"), part.get("rows", part.get("clients"))): part
        for part in result(LANES)["parts"]
        if part.get("method") == "cai"
    }
    one, many, before = (parts["http", *which] for which in (("graph", 1), ("graph", 32), ("off", 32)))
    loop, batch = parts["generate", "graph", 1], parts["generate", "graph", 32]
    speed, first = many["tokens_per_second"], [part["first_token_ms"]["median"] for part in (one, many)]
    clients = "server, 32 clients: tokens per second / "
    step, share = one["ms_per_token"] / loop["ms_per_step"], speed / batch["tokens_per_second"]
    yield Row(1, "server, 1 client: time per token / bare loop", LANES, step, most=1.15)
    yield Row(1, clients + "way before", LANES, speed / before["tokens_per_second"], least=5, form="{:.3g}")
    yield Row(1, clients + "bare loop with its prompts", LANES, share, least=0.7)
    share = speed / batch["tokens_per_second_of_steps"]
    yield Row(1, clients + "bare loop's steps alone", LANES, share, least=0.7)
    yield Row(1, "server: first token, 32 clients / 1 client", LANES, first[1] / first[0], most=3, form="{:.1f}")
    yield Row(1, "`transformers serve` on the same card")


def differing() -> Iterator[Row]:
    """Answers in captured steps (uncaptured, on a CPU) and in transformers' loop, counted."""
    for model, name in WAYS.items():
        for dtype in ("float32", "bfloat16"):
            runs = [run for run in result(name)["runs"] if run["dtype"] == dtype]
            different, near, all_ = (
                sum(run[key] for run in runs) for key in ("different", "decided_by_rounding", "answers")
            )
            why = f", {near} at near ties" if different else ""
            what = f"answers that differ from transformers' loop: {model} model, {dtype}, CPU"
            yield Row(1, what, name, shown=f"{different} of {all_}{why}")


def against(item: int, what: str, most: float | None, rows: list[Mapping[str, Any]], name: str) -> Row:
    """A goal for the ratio to regular decoding of the same rounds."""
    row = next(row for row in rows if row["method"] == name)
    source = LAYERS if most == 1.15 or most is None else FORKS
    shown = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    return Row(item, what, source, row["ratio"], most=most, shown=shown)


def steps() -> Iterator[Row]:
    """What methods cost beside regular decoding, by steps timed in turns."""
    forks, second = result(FORKS), result(LAYERS)["second_tier"]
    (qwen,) = (row["floor share"] for row in forks["qwen"]["1"]["four"] if row["method"] == "regular")
    yield Row(3, "Qwen3.5-4B: share of the floor", FORKS, qwen, least=0.65, form="{:.1%}")
    yield against(3, "Qwen3.5-4B: CAI / regular", 1.06, forks["qwen"]["1"]["four"], "cai")
    yield against(3, "Qwen3.5-4B: CAI / regular, batch 8", 1.06, forks["qwen"]["8"]["four"], "cai")
    yield Row(3, "`fla` and `kernels` as peers")
    yield against(4, "LLaVA-1.5-7B: CAI / regular", 1.05, forks["llava"]["four"], "cai")
    yield against(4, "LLaVA-1.5-7B: CAI / regular, batch 8", 1.05, forks["llava_eight"]["four"], "cai")
    for method, name in (("memvr", "MemVR"), ("locore", "LocoRE"), ("sid", "SID")):
        yield against(5, f"{name} / regular", 1.15, second, method)
    yield against(5, "DoLa / regular, timed again", None, second, "dola")


def judge() -> Iterator[Row]:
    """What `confirm` costs."""
    goals = (("three questions", "questions", 1.08), ("whole answer", "both", 1.35))
    for name, batch, when in ((JUDGE, 1, ""), (JUDGE_OF_8, 8, ", batch 8, before steps ran ahead")):
        ratios = next(part for part in result(name)["measured"] if part["batch"] == batch)["ratios"]
        for what, variant, most in goals:
            told = ratios[variant]
            shown = f"{told['median']:.3f} ({told['low']:.3f} to {told['high']:.3f})"
            yield Row(5, f"`confirm` / regular: {what}{when}", name, told["median"], most=most, shown=shown)
    value = result(ON_A_CPU)["whole answer"]["confirm"]["value"]
    yield Row(5, "`confirm` / regular: whole answer, on a CPU", ON_A_CPU, value, most=1.6)


def prefill_and_cpu() -> Iterator[Row]:
    """The first token, and programs on two CPU cores."""
    costs = {row["method"]: row for row in result(SESSION)["llava, batch 1"]["found"]["costs"]}
    prefill = "prefill, LLaVA-1.5-7B, 576 image tokens: "
    yield Row(6, prefill + "ms", SESSION, costs["regular"]["prefill_ms"], most=35, form="{:.1f}")
    yield Row(6, prefill + "CAI / regular", SESSION, costs["cai"]["prefill_ratio"], most=1.1)
    used = {way: told["cpu"] for way, told in result(DESCRIBE)["median"].items()}
    what = "`describe` beside a busy process: processor time, default threads / one thread"
    yield Row(7, what, DESCRIBE, used["default"] / used["one"])
    wall = result(DEMO)["median"]["default"]["wall"]
    yield Row(7, "`seewhen demo`, warm, two quiet cores: seconds", DEMO, wall, most=12, form="{:.1f}")


def table() -> str:
    """The goals in Markdown."""
    rows = [*server(), *differing(), *steps(), *judge(), *prefill_and_cpu()]
    cells = [("item", "what", "goal", "measured", ""), ("---",) * 5, *(row.cells for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def page() -> str:
    """The page with its table as the results have it."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
