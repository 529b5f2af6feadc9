"""Bringing a study home: what is kept of runs that were cut off, and that no machine's folders come along."""

from __future__ import annotations

from pathlib import Path

from photographs.gather import Found, keep, nameless
from photographs.told import told
from seewhen.runs.store import Record, Run


def found(method: str, mode: str, seeds: tuple[int, ...], answers: int = 4) -> Found:
    config = {
        "benchmark": {"name": "chair"},
        "decoding": {"mode": mode, "max_new_tokens": 64},
        "method": {"label": method, "method": "part" if method.startswith("cai-") else method},
    }
    records = tuple(Record(str(n), 0, str(n), "A dog.") for n in range(answers))
    return Found(Run(Path(method), config, {}, records, None, ()), frozenset("0123"), seeds)


def test_sampled_runs_keep_the_seeds_that_all_have() -> None:
    several = [
        found("regular", "sample", (0, 1, 2, 3, 4)),
        found("cai-attention", "sample", (0, 1, 2)),
        found("vcd", "sample", (0, 1, 2, 3)),
        found("pai", "sample", (), answers=3),
    ]
    kept, said = keep(several)
    assert {str(one): seeds for one, seeds in kept} == {
        "regular chair 64 sample": (0, 1, 2),
        "cai-attention chair 64 sample": (0, 1, 2),
        "vcd chair 64 sample": (0, 1, 2),
    }
    assert said == [
        "regular chair 64 sample: 5 seeds, 3 kept",
        "vcd chair 64 sample: 4 seeds, 3 kept",
        "pai chair 64 sample: 3 of 4 answers, left out",
    ]


def test_greedy_runs_are_whole_or_left_out_and_samplers_are_not_among_them() -> None:
    several = [found("regular", "greedy", (0,)), found("opera", "greedy", ()), found("saliency", "greedy", (0,))]
    kept, said = keep(several)
    assert [(str(one), seeds) for one, seeds in kept] == [("regular chair 64 greedy", (0,))]
    assert said == [
        "opera chair 64 greedy: 4 of 4 answers, left out",
        "saliency chair 64 greedy: only samples, left out of the greedy runs",
    ]


def test_captions_are_counted_once_for_each_object() -> None:
    answers = ("A dog and a dog beside a car.", "A cat.")
    records = tuple(Record(str(n), 0, str(n), text) for n, text in enumerate(answers))
    shown = {"0": frozenset({"dog"}), "1": frozenset({"cat"})}
    common = {"dog": 0.1, "car": 0.3, "cat": 0.2}
    assert told(Run(Path("run"), {}, {}, records, None, ()), shown, common) == {
        "objects": 1.5,
        "invented": 0.5,
        "common_right": 15.0,
        "common_invented": 30.0,
        "often_invented": ["car 1"],
    }


def test_folders_of_a_machine_stay_there() -> None:
    config = {
        "model": {"name": "/there/run/model"},
        "method": {"parameters": {"directions": "/there/vti.safetensors"}},
    }
    assert nameless(config) == {
        "model": {"name": "model"},
        "method": {"parameters": {"directions": "vti.safetensors"}},
    }
    assert nameless({"prompt": "yes/no", "seeds": 3, "split": None}) == {
        "prompt": "yes/no",
        "seeds": 3,
        "split": None,
    }
