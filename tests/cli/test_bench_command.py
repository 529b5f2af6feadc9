"""`seewhen bench` on the packaged model and on a tiny shape."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from seewhen.cli import app
from seewhen.speed.bench import as_markdown, red_flags
from seewhen.speed.measure import Cost, bytes_per_step, interval

pytestmark = pytest.mark.slow


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_measures_the_packaged_model_and_writes_its_files(tmp_path):
    prefix = tmp_path / "speed"
    result = run(
        "packaged", "--method", "cai,vti", "--batch", "1,2", "--tokens", "3", "--repeats", "1",
        "--device", "cpu", "--fast", "off,graph", "--out", str(prefix), "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert json.loads((tmp_path / "speed.json").read_text())["costs"] == printed["costs"]
    seen = {(cost["method"], cost["way"], cost["batch"]) for cost in printed["costs"]}
    assert seen == {(m, w, b) for m in ("regular", "cai") for w in ("off", "uncaptured") for b in (1, 2)}
    for cost in printed["costs"]:
        assert cost["image_tokens"] == 144 and cost["new_tokens"] == 3
        assert all(cost[name] > 0 for name in ("ms_per_token", "tokens_per_second", "prefill_ms", "floor_ms"))
        assert cost["ratio_low"] <= cost["ratio"] <= cost["ratio_high"]
        assert cost["ratio"] == 1.0 or cost["method"] == "cai"
    assert "calibrate vti" in printed["left_out"]["vti, batch 1"]
    assert (tmp_path / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert "| regular | off | 1 | 144 |" in (tmp_path / "speed.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--batch", "0"], "not a list of positive numbers"),
        (["shape:none"], "There is no shape"),
        (["shape:llava-1.5-7b", "--adapter", "x"], "A shape has no adapter"),
        (["--method", "nosuch", "shape:llava-1.5-13b"], "There is no method"),
        (["--fast", "warp", "--device", "cpu"], "fast='warp' is unknown"),
    ],
)
def test_bad_arguments_are_explained(arguments, complaint):
    from seewhen.errors import SeewhenError

    result = run(*arguments)
    assert isinstance(result.exception, SeewhenError) and complaint in str(result.exception)


def test_without_matplotlib_nothing_is_measured_for_a_figure(tmp_path, monkeypatch):
    from seewhen.errors import MissingDependency

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run("packaged", "--tokens", "2", "--repeats", "1", "--out", str(tmp_path / "speed"))
    assert isinstance(result.exception, MissingDependency) and "seewhen[figures]" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_floor_counts_weights_once_and_the_cache_of_all_rows():
    import torch

    from seewhen.backbones.backbone import Backbone
    from seewhen.backbones.shapes import random_model, shape_config

    config = shape_config("llava-1.5-7b", tiny=True)
    backbone = Backbone.of(random_model(config, dtype=torch.bfloat16))
    text = config.text_config
    layer = 4 * text.hidden_size**2 + 3 * text.hidden_size * text.intermediate_size + 2 * text.hidden_size
    weights = text.num_hidden_layers * layer + text.hidden_size + text.vocab_size * text.hidden_size
    cache = 2 * text.num_hidden_layers * text.hidden_size
    assert bytes_per_step(backbone, 3, 10) == 2 * (weights + 3 * 10 * cache)


def test_the_floor_counts_what_a_packed_weight_is_made_of():
    from torch import nn

    import packed
    from seewhen.backbones.backbone import Backbone

    model, whole = (Backbone.of(each) for each in packed.pair("llava"))
    linear = [each for each in (*whole.decoder.modules(), whole.head) if type(each) is nn.Linear]
    spared = sum(3 * each.weight.numel() - 4 * each.out_features for each in linear)  # a scale for each row
    assert bytes_per_step(model, 2, 7) == bytes_per_step(whole, 2, 7) - spared


def test_growth_with_image_tokens_and_its_picture():
    from seewhen.speed.figure import speed

    costs = [
        Cost("regular", "off", 1, 600 * n, 576 * n, 8, 0, 1.0, 2.0 * n, (1.0, 3.0), 500.0, None, 0.1, 1.0, 1.0)
        for n in (1, 4)
    ]
    figure = speed(costs, "growth")
    assert [axes.get_xlabel() for axes in figure.axes] == ["ms per token", "image tokens"]
    assert as_markdown(costs).count("\n") == 4


def test_every_method_is_timed_from_its_first_choice():
    """None has a loop that chooses tokens unseen."""
    import torch

    import seewhen
    from seewhen.backbones.shapes import random_inputs, random_model, shape_config
    from seewhen.methods import method_names
    from seewhen.speed.measure import costs

    config = shape_config("llava-1.5-7b", tiny=True)
    model = random_model(config, dtype=torch.float32)
    fitted = {"vti", "ict", "confirm", "icd", "saliency"}  # need directions or a tokenizer
    methods = {name: seewhen.method(name) for name in method_names() if name not in fitted}
    found, failures = costs(model, lambda rows: random_inputs(config, rows=rows), methods, tokens=3, repeats=2)
    assert {cost.method for cost in found} | {name.split(",")[0] for name in failures} == set(methods)
    assert all(min(cost.rounds) > 0 and cost.prefill_ms > 0 for cost in found), found


def cost(**given):
    known = {"method": "vcd", "way": "off", "batch": 1, "prompt_tokens": 9, "image_tokens": 4, "new_tokens": 8}
    known |= {
        "extra_rows": 0,
        "prefill_ms": 1.0,
        "ms_per_token": 2.0,
        "rounds": (2.0,),
        "tokens_per_second": 500.0,
    }
    known |= {"peak_bytes": None, "first_call_s": 0.1, "floor_ms": 1.0}
    known |= {"ratio": 1.2, "ratio_low": 1.1, "ratio_high": 1.3, "compared_way": "off"}
    return Cost(**known | given)


@pytest.mark.parametrize(
    ("given", "flag"),
    [
        ({}, None),
        ({"ratio_low": 0.9}, "vcd, off, batch 1: too noisy to compare, its ratio lies between 0.90 and 1.30"),
        (
            {"extra_rows": 1, "ratio": 0.94, "ratio_low": 0.9, "ratio_high": 1.1},
            "vcd, off, batch 1: faster than regular decoding, with more rows.",
        ),
        # Within its interval, and no more work than regular decoding has.
        ({"ratio": 0.94, "ratio_low": 0.9, "ratio_high": 1.1}, None),
        (
            {"ratio": 0.94, "ratio_low": 0.9, "ratio_high": 0.97},
            "vcd, off, batch 1: faster than regular decoding, all of whose",
        ),
        (
            {"way": "uncaptured", "compared_way": "graph"},
            "vcd, uncaptured, batch 1: it ran uncaptured, regular",
        ),
        ({"notes": ("The step cannot be captured: x",)}, "vcd, batch 1: The step cannot be captured: x"),
    ],
)
def test_what_cannot_be_is_a_red_flag(given, flag):
    flags = red_flags([cost(**given)])
    assert [told.startswith(str(flag)) for told in flags] == [True] * (flag is not None)
    assert all(told in as_markdown([cost(**given)]) for told in flags)


def test_the_interval_of_a_median_supposes_no_distribution():
    low, high, sure = interval(list(range(6)))
    assert (low, high) == (0, 5) and sure == 1 - 2 / 64
    low, high, sure = interval(list(range(15)))  # tables of the sign test: the 4th and the 12th of 15
    assert (low, high) == (3, 11) and 0.95 < sure < 0.97
    assert interval([2.0]) == (2.0, 2.0, 0.0)


def test_each_row_knows_the_way_of_its_yardstick():
    import torch

    import seewhen
    from seewhen.backbones.shapes import random_inputs, random_model, shape_config
    from seewhen.speed.measure import costs

    config = shape_config("llava-1.5-7b", tiny=True)
    model = random_model(config, dtype=torch.float32)
    methods = {name: seewhen.method(name) for name in ("regular", "opera")}  # beams are left to transformers
    found, _ = costs(
        model, lambda rows: random_inputs(config, rows=rows), methods, tokens=3, repeats=1, fast="auto"
    )
    assert [one.compared_way for one in found] == ["off", "off"]
    graph, failures = costs(
        model, lambda rows: random_inputs(config, rows=rows), methods, tokens=3, repeats=1, fast="graph"
    )
    assert [one.way for one in graph] == ["uncaptured"] and "opera" in failures["opera, batch 1"]
    assert len(graph[0].prefills) == len(graph[0].rounds) == 1 and graph[0].prefill_ratio == 1.0


def test_the_page_of_a_session_says_what_was_not_measured(tmp_path):
    import importlib.util
    from pathlib import Path

    found = Path(__file__).parents[2] / "benchmarks" / "speed" / "page.py"
    if not found.exists():
        pytest.skip("the benchmarks are not part of this tree")
    spec = importlib.util.spec_from_file_location("speed_page", found)
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    rows = [cost(method="regular", way="graph", ratio=1.0), cost(method="cai", way="graph", ratio=1.04)]
    result = {
        "about": {"command": "session.py", "device": "a card", "read_bandwidth": 4e12},
        "llava, batch 1": {"found": {"costs": [one.to_json() for one in rows]}, "seconds": 3.0},
        "qwen3.5, batch 1": {"left out": "3 s were left, 20 wanted"},
        "llava, judge": {"failed": "Traceback\nno room\n"},
    }
    text = page.section(result, "session.json")
    assert "| cai | graph | 1 | 4 |" in text and "4.00 TB/s" in text
    assert "Not measured in this run: qwen3.5, batch 1; llava, judge (failed: no room)." in text
    assert page.costs_of(result["llava, batch 1"]) == rows
