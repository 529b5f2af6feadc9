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
    """A goal and what was measured; `most` or `least` is the limit. Without a source it was not measured."""

    about: str
    what: str
    source: str = ""
    value: float | None = None
    most: float | None = None
    least: float | None = None
    form: str = "{:.2f}"
    shown: str = ""  # instead of the value alone
    doubt: bool = False  # the text below says why the number should not be trusted

    @property
    def cells(self) -> tuple[str, ...]:
        """Of the table."""
        limit = self.most if self.most is not None else self.least
        goal = ""
        if limit is not None:
            wanted = f"{limit:.0%}" if "%" in self.form else f"{limit:g}"
            goal = ("at most " if self.most is not None else "at least ") + wanted.replace("%", " %")
        measured = self.shown or (self.form.format(self.value).replace("%", " %") if self.source else "")
        linked = f"[{measured}]({self.source})" if self.source else ""
        return self.about, self.what, goal, linked, self.verdict

    @property
    def verdict(self) -> str:
        """Whether the goal was reached."""
        if not self.source:
            return "not measured"
        if self.value is None or (self.most is None and self.least is None):
            return "measured"
        inside = self.value <= self.most if self.most is not None else self.value >= (self.least or 0.0)
        return ("reached" if inside else "**missed**") + ", see below" * self.doubt


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
    about, clients = "server", "32 clients: tokens per second / "
    step, gain = one["ms_per_token"] / loop["ms_per_step"], speed / before["tokens_per_second"]
    whole, steps = (speed / batch[name] for name in ("tokens_per_second", "tokens_per_second_of_steps"))
    yield Row(about, "1 client: time per token / bare loop", LANES, step, most=1.15)
    yield Row(about, clients + "way before", LANES, gain, least=5, form="{:.1f}", doubt=True)
    yield Row(about, clients + "bare loop with its prompts", LANES, whole, least=0.7, form="{:.0%}")
    yield Row(about, clients + "bare loop's steps alone", LANES, steps, least=0.7, form="{:.0%}")
    yield Row(about, "first token, 32 clients / 1 client", LANES, first[1] / first[0], most=3, form="{:.1f}")
    yield Row(about, "`transformers serve` on the same card")


def differing() -> Iterator[Row]:
    """Answers in captured steps (uncaptured, on a CPU) and in transformers' loop, counted."""
    for model, name in WAYS.items():
        for dtype in ("float32", "bfloat16"):
            runs = [run for run in result(name)["runs"] if run["dtype"] == dtype]
            different, near, all_ = (
                sum(run[key] for run in runs) for key in ("different", "decided_by_rounding", "answers")
            )
            shown = f"{different} of {all_}" + (f", {near} at near ties" if different else "")
            yield Row("`eval`", f"answers that differ both ways: {model} model, {dtype}", name, shown=shown)


def against(
    about: str, what: str, most: float | None, source: str, rows: list[Mapping[str, Any]], method: str = "cai"
) -> Row:
    """A goal for the ratio to regular decoding of the same rounds."""
    row = next(row for row in rows if row["method"] == method)
    shown = f"{row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    return Row(about, what, source, row["ratio"], most=most, shown=shown)


def steps() -> Iterator[Row]:
    """What methods cost beside regular decoding, by steps timed in turns."""
    forks, second = result(FORKS), result(LAYERS)["second_tier"]
    qwen, llava, others = "Qwen3.5-4B", "LLaVA-1.5-7B", "other methods"
    (share,) = (row["floor share"] for row in forks["qwen"]["1"]["four"] if row["method"] == "regular")
    yield Row(qwen, "share of the floor", FORKS, share, least=0.65, form="{:.1%}", doubt=True)
    yield against(qwen, "CAI / regular", 1.06, FORKS, forks["qwen"]["1"]["four"])
    yield against(qwen, "CAI / regular, batch 8", 1.06, FORKS, forks["qwen"]["8"]["four"])
    yield Row(qwen, "`fla` and `kernels` as peers")
    yield against(llava, "CAI / regular", 1.05, FORKS, forks["llava"]["four"])
    yield against(llava, "CAI / regular, batch 8", 1.05, FORKS, forks["llava_eight"]["four"])
    for method, name in (("memvr", "MemVR"), ("locore", "LocoRE"), ("sid", "SID")):
        yield against(others, f"{name} / regular", 1.15, LAYERS, second, method)
    yield against(others, "DoLa / regular, timed again", None, LAYERS, second, "dola")


def judge() -> Iterator[Row]:
    """What `confirm` costs."""
    asked = (("three questions", "questions", 1.08), ("whole answer", "both", 1.35))
    for name, batch, when in ((JUDGE, 1, ""), (JUDGE_OF_8, 8, ", batch 8, older run")):
        ratios = next(part for part in result(name)["measured"] if part["batch"] == batch)["ratios"]
        for what, variant, most in asked:
            told = ratios[variant]
            shown = f"{told['median']:.3f} ({told['low']:.3f} to {told['high']:.3f})"
            yield Row("`confirm`", f"{what} / regular{when}", name, told["median"], most=most, shown=shown)
    value = result(ON_A_CPU)["whole answer"]["confirm"]["value"]
    yield Row("`confirm`", "whole answer / regular, on a CPU", ON_A_CPU, value, most=1.6)


def prefill_and_cpu() -> Iterator[Row]:
    """The first token, and programs on two CPU cores."""
    costs = {row["method"]: row for row in result(SESSION)["llava, batch 1"]["found"]["costs"]}
    prefill = costs["regular"]["prefill_ms"]
    yield Row("prefill", "LLaVA-1.5-7B, 576 image tokens: ms", SESSION, prefill, most=35, form="{:.1f}")
    yield Row("prefill", "CAI / regular", SESSION, costs["cai"]["prefill_ratio"], most=1.1)
    walls = {way: told["wall"] for way, told in result(DESCRIBE)["median"].items()}
    what = "`describe` beside a busy process, two cores: seconds at default threads, with one, as torch has it"
    yield Row(
        "CPU", what, DESCRIBE, shown=", ".join(f"{walls[way]:.1f}" for way in ("default", "one", "spinning"))
    )
    wall = result(DEMO)["median"]["default"]["wall"]
    yield Row("CPU", "`seewhen demo`, warm, two quiet cores: seconds", DEMO, wall, most=12, form="{:.1f}")


def table() -> str:
    """The goals in Markdown."""
    rows = [*server(), *differing(), *steps(), *judge(), *prefill_and_cpu()]
    cells = [("", "what", "goal", "measured", ""), ("---",) * 5, *(row.cells for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in cells)


def page() -> str:
    """The page with its table as the results have it."""
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
