"""`seewhen bench` on the packaged model and on a tiny shape."""

from __future__ import annotations

import dataclasses
import json

import pytest
from typer.testing import CliRunner

from seewhen.cli import app
from seewhen.speed.bench import as_markdown, red_flags
from seewhen.speed.measure import Cost, bytes_per_step


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


def test_more_rows_in_less_time_is_a_red_flag():
    fast = Cost("vcd", "off", 1, 9, 4, 8, 1, 1.0, 2.0, (2.0,), 500.0, None, 0.1, 1.0, 0.94, 0.9, 1.1)
    slow, alone = (dataclasses.replace(fast, **given) for given in ({"ratio": 1.2}, {"extra_rows": 0}))
    (flag,) = red_flags([fast, slow, alone])
    assert flag.startswith("vcd, off, batch 1: faster") and flag in as_markdown([fast])
