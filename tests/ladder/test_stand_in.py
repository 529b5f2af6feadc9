"""The rule that chooses the stand-in: what it looks at, and what it does not."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

from ladder.stand_in import TARGETS, Response, choose, distance, read, write
from seewhen.errors import InvalidInput
from seewhen.runs.published import cells

EXACT = {name: target.value for name, target in TARGETS.items()}


def off(**changes: float) -> dict[str, float]:
    return EXACT | {name.replace("__", " "): value for name, value in changes.items()}


def test_targets_are_the_published_figures() -> None:
    names = ("method", "dataset", "split", "max_new_tokens", "metric")
    printed = {
        (c.number, *map(c.get, names)): c.value
        for c in cells()
        if c.get("model") == "LLaVA-1.5" and c.number in (1, 2)
    }
    for method in ("vcd", "pai", "only"):
        gains = [
            value - printed[2, "regular", *rest]
            for (number, name, *rest), value in printed.items()
            if number == 2 and name == method and rest[-1] == "accuracy"
        ]
        assert len(gains) == 9
        assert TARGETS[f"pope {method}"].value == pytest.approx(mean(gains), abs=0.006)
        for metric in ("chair_s", "chair_i"):
            with_it, without = (printed[1, name, None, None, 64, metric] for name in (method, "regular"))
            assert TARGETS[f"{metric} {method}"].value == pytest.approx(100 * (with_it / without - 1), abs=0.06)


def test_nothing_of_cai_is_a_target() -> None:
    assert not any("cai" in name or "tilt" in name or "contrast" in name for name in TARGETS)


def test_the_nearest_rung_is_chosen_and_the_distance_counts_tolerances() -> None:
    near = Response(80, 60, off(pope__vcd=EXACT["pope vcd"] + 2.0))
    far = Response(80, 60, off(pope__vcd=EXACT["pope vcd"] + 2.0, auroc__asking=0.79))
    used = tuple(TARGETS)
    assert distance(near, used) == pytest.approx(1 / len(used))
    assert distance(far, used) == pytest.approx(3 / len(used))
    assert choose({"far": far, "near": near}).chosen == "near"


def test_a_rung_that_cannot_answer_or_describe_is_left_out() -> None:
    exact = Response(55, 60, EXACT)
    silent = Response(80, 20, EXACT)
    poor = Response(80, 60, off(auroc__asking=0.5))
    choice = choose({"cannot answer": exact, "cannot describe": silent, "poor": poor})
    assert choice.chosen == "poor" and choice.unable == ("cannot answer", "cannot describe")
    with pytest.raises(InvalidInput):
        choose({"cannot answer": exact})


def test_what_was_not_measured_everywhere_does_not_count() -> None:
    partly = {name: value for name, value in EXACT.items() if name != "chair_i opera"}
    choice = choose({"a": Response(80, 60, off(chair_i__opera=90.0)), "b": Response(80, 60, partly)})
    assert "chair_i opera" not in choice.used
    assert choice.distances["a"] == pytest.approx(0) and choice.distances["b"] == pytest.approx(0)


def test_a_choice_is_made_once(tmp_path: Path) -> None:
    path = tmp_path / "choice.json"
    first = write({"a": Response(80, 60, EXACT)}, path)
    again = write({"b": Response(80, 60, EXACT)}, path)
    assert first == again == read(path) and first.chosen == "a"
    assert json.loads(path.read_text())["responses"]["a"]["pope"] == 80
