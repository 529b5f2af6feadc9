"""benchmarks/embedded.md and the packaged model's card tell what the committed results hold."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

import seewhen

HERE = Path(__file__).parents[2] / "benchmarks"
PAGE = (HERE / "embedded.md").read_text(encoding="utf-8")
CELL = re.compile(r"(\d+\.\d+)(?: [▲▼])? \[(\d+\.\d+), (\d+\.\d+)\]")


def cells(text: str) -> np.ndarray:
    """Every value with its interval."""
    return np.array([[float(number) for number in cell] for cell in CELL.findall(text)])


def test_every_cell_of_the_tables_is_one_of_the_report() -> None:
    """To a tenth: the report has two places."""
    told, found = cells(PAGE), cells((HERE / "embedded/report/report.md").read_text(encoding="utf-8"))
    apart = [np.abs(found - cell).max(axis=1).min() for cell in told]
    assert len(told) > 800 and max(apart) < 0.0551


def test_what_each_method_costs_is_what_was_timed() -> None:
    timed = json.loads((HERE / "embedded/latency.json").read_text(encoding="utf-8"))["methods"]
    rows = re.findall(r"^\| [\w:=-]+ \| (\d+\.\d) \| (\d+\.\d\d) \| (\d) \|$", PAGE, re.M)
    made = [(f"{c['ms_per_token']:.1f}", f"{c['ratio']:.2f}", str(c["extra_rows"])) for c in timed.values()]
    assert rows == made  # in the same order; some methods were called otherwise then


@pytest.mark.parametrize("name", ["shifted", "shifted-fresh", "test", "test-held-out-artwork"])
def test_the_models_card_tells_what_was_measured(name: str) -> None:
    card = (Path(seewhen.__file__).parent / "weights/emoji/README.md").read_text(encoding="utf-8")
    found = json.loads((HERE / f"embedded/{name}.json").read_text(encoding="utf-8"))

    def told(values: Iterable[float], places: int = 1) -> str:
        return " / ".join(f"{value:.{places}f}" for value in values)

    kinds = ("random", "popular", "adversarial")
    pope = [told(found["pope"][kind][way] for kind in kinds) for way in ("sampled", "greedy")]
    chair = [told(found[way][name] for name in ("chair_s", "chair_i", "recall")) for way in ("sampled", "greedy")]
    mme = told((each["sampled"] for each in found["mme"].values()), 0)
    assert f"({found['scenes']} scenes) | {' | '.join([*pope, *chair, mme])} |" in card
