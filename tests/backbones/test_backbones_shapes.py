"""The paper's four backbones in their published structure: sizes, layouts, identities; what `doctor` tells."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import published
import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

import seewhen
import tiny
from seewhen.asking.doctor import model_facts
from seewhen.backbones.loading import load_model
from seewhen.backbones.qwen_vl import save_original
from seewhen.backbones.shapes import SHAPES, random_inputs, random_model, shape_config
from seewhen.backbones.supported import FAMILIES, HOW
from seewhen.benchmarks.chair.prompts import STYLES as CHAIR_STYLES
from seewhen.benchmarks.pope.prompts import STYLES as POPE_STYLES
from seewhen.cli import app
from seewhen.errors import InvalidInput, SeewhenError

REPOSITORY = Path(__file__).parents[2]
FOUR = ("llava-1.5-7b", "instructblip-7b", "qwen-vl-7b", "qwen3.5-4b")
STEPS = 3
NEVER = seewhen.method("cai", start_layer=0, threshold=1e9)
OPEN = seewhen.method("cai", start_layer=0, threshold=-1.0, contrast=3.0)


@functools.cache
def tiny_shape(name: str) -> tuple[Any, Any]:
    """Model and configuration: the published structure, narrow, four layers deep."""
    config = shape_config(name, tiny=True, layers=4)
    model = random_model(config)
    with torch.no_grad():  # logits far from flat, so that differences show
        model.get_output_embeddings().weight.mul_(5.0)
    return model, config


def inputs_of(name: str, rows: int = 1) -> dict[str, Any]:
    return random_inputs(tiny_shape(name)[1], rows=rows, text_before=6, text_after=9, dtype=torch.float32)


def generate(model: Any, inputs: dict[str, Any], **options: Any) -> torch.Tensor:
    length = {"min_new_tokens": STEPS, "max_new_tokens": STEPS}
    output = model.generate(
        **inputs, **length, do_sample=False, return_dict_in_generate=True, output_logits=True, **options
    )
    return torch.stack(output.logits, dim=1)


# -- sizes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions", "layers", "tokens"),
    [
        ("llava-1.5-7b", 7.06, 32, 576),
        ("llava-1.5-13b", 13.35, 40, 576),
        ("instructblip-7b", 7.91, 32, 32),
        ("qwen-vl-7b", 9.66, 32, 256),
        ("qwen3.5-4b", 4.54, 32, 300),
    ],
)
def test_doctor_knows_the_published_sizes(name: str, billions: float, layers: int, tokens: int) -> None:
    """Parameter counts are those of the published checkpoints (Qwen3.5 without its draft layer)."""
    facts = model_facts(f"shape:{name}")
    assert facts["supported"] and facts["parameters"] == f"{billions:.2f} billion"
    assert facts["decoder"].endswith(f"{layers} layers")
    assert str(facts["tokens_per_image"]).split()[0] == str(tokens)
    number, unit = facts["weights_memory"].split(" ", 1)
    assert float(number) == pytest.approx(2e9 * billions / 2**30, abs=0.02) and unit == "GiB in bfloat16"


def test_hybrid_layers() -> None:
    facts = model_facts("shape:qwen3.5-4b")
    assert facts["softmax_layers"] == [3, 7, 11, 15, 19, 23, 27, 31]
    assert facts["tilted_by_default"] == [31]  # above floor(0.85 * 32) = 27
    # Keys and values of 8 layers, 4 heads of 256, two bytes; the 24 linear layers keep no history.
    assert facts["cache_memory"].startswith(f"{1000 * 2 * 8 * 4 * 256 * 2 / 2**30:.2f} GiB")


def test_doctor_refuses_in_one_line() -> None:
    runner = CliRunner()
    with pytest.raises(InvalidInput, match=r"no shape.*shape:llava-1\.5-7b"):
        model_facts("shape:llava-9")
    told = json.loads(runner.invoke(app, ["doctor", "--model", "shape:qwen-vl-7b", "--json"]).stdout)
    assert told["model"]["tokens_per_image"] == 256 and told["model"]["tested"]


# -- the table of what is supported ------------------------------------------------------------------------


def families_with(how: str) -> set[str]:
    return {family.model_type for family in FAMILIES if how in family.tested}


def test_the_table_is_what_the_tests_do() -> None:
    assert {how for family in FAMILIES for how in family.tested} <= set(HOW)
    shapes = {shape_config(name).model_type for name in FOUR}
    assert families_with("identities") == {*tiny.FAMILIES, *shapes}
    # LLaVA's processor is that of the packaged model, Qwen-VL's has a test file of its own.
    assert families_with("processor") == {*published.FAMILIES, "instructblip", "llava", "qwen"}
    result = REPOSITORY / "benchmarks" / "backbones" / "full_size.json"
    measured = json.loads(result.read_text())["backbones"] if result.is_file() else {}
    assert families_with("full size") == {shape_config(name).model_type for name in measured}


def test_models_lists_the_table() -> None:
    told = json.loads(CliRunner().invoke(app, ["models", "--json"]).stdout)
    assert [family["model_type"] for family in told["families"]] == [family.model_type for family in FAMILIES]
    assert told["shapes"] == {f"shape:{name}": shape["checkpoint"] for name, shape in SHAPES.items()}
    shown = CliRunner().invoke(app, ["models"], env={"COLUMNS": "200"}).stdout
    assert all(family.checkpoint in shown for family in FAMILIES)


def test_the_page_holds_the_table() -> None:
    page = REPOSITORY / "docs" / "models.md"
    if not page.is_file():
        pytest.skip("the documentation is not part of this installation")
    known = ((f.model_type, f"`{f.checkpoint}`", ", ".join(f.tested), f.note) for f in FAMILIES)
    rows = "\n".join(f"| {' | '.join(each)} |" for each in known)
    assert f"\n| family | for example | tested | note |\n|---|---|---|---|\n{rows}\n" in page.read_text("utf-8")


# -- identities --------------------------------------------------------------------------------------------

four = pytest.mark.parametrize("name", FOUR)


@four
def test_a_closed_gate_is_stock_and_an_open_one_is_not(name: str) -> None:
    model, _ = tiny_shape(name)
    inputs = inputs_of(name, rows=2)
    stock = generate(model, inputs)
    with seewhen.attach(model, NEVER), pytest.warns(UserWarning, match="never fired"):
        assert torch.equal(generate(model, inputs), stock)
    with seewhen.attach(model, OPEN.replace(contrast=1.0, strength=0.0)):
        assert torch.equal(generate(model, inputs), stock)
    with seewhen.attach(model, OPEN.replace(contrast=1.0)) as handle:
        assert (generate(model, inputs) - stock)[:, 0].abs().max() > 1e-5
    assert handle.trace.fired_tokens() == (STEPS, STEPS)


@four
def test_a_batch_is_its_rows(name: str) -> None:
    model, _ = tiny_shape(name)
    inputs = inputs_of(name, rows=2)
    per_image = len(inputs["pixel_values"]) // 2
    with seewhen.attach(model, OPEN):
        batch = generate(model, inputs)
        for row in range(2):
            single = {k: v[row : row + 1] for k, v in inputs.items() if k != "pixel_values"}
            single["pixel_values"] = inputs["pixel_values"][row * per_image : (row + 1) * per_image]
            torch.testing.assert_close(generate(model, single)[0], batch[row], atol=1e-4, rtol=0)


@four
def test_a_static_cache_is_a_growing_one(name: str) -> None:
    model, _ = tiny_shape(name)
    inputs = inputs_of(name, rows=2)
    with seewhen.attach(model, OPEN):
        growing = generate(model, inputs)
        static = generate(model, inputs, cache_implementation="static")
    torch.testing.assert_close(growing, static, atol=1e-4, rtol=0)


@four
def test_saved_in_the_published_layout_and_loaded_again(name: str, tmp_path: Path) -> None:
    model, _ = tiny_shape(name)
    if name.startswith("qwen-vl"):
        save_original(model, tmp_path)
        with safe_open(tmp_path / "model.safetensors", "pt") as file:
            assert "transformer.h.0.attn.c_attn.weight" in file.keys()  # noqa: SIM118
    else:
        model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, device="cpu")
    mine, theirs = model.state_dict(), loaded.state_dict()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)
    with seewhen.attach(model, OPEN):
        expected = generate(model, inputs_of(name))
    with seewhen.attach(loaded, OPEN):
        # Weights mapped from a file may lie otherwise in memory, and sums be taken in another order.
        torch.testing.assert_close(generate(loaded, inputs_of(name)), expected, atol=1e-5, rtol=0)


# Those that are complete without a tokenizer, calibration or images of their own, and can be greedy.
ALONE = ("regular", "min-p", "cai", "pai", "vcd", "m3id", "sid", "only", "dola", "farsight", "memvr")


@pytest.mark.parametrize("method", ALONE)
def test_methods_on_the_port_of_qwen_vl(method: str) -> None:
    model, _ = tiny_shape("qwen-vl-7b")
    inputs = inputs_of("qwen-vl-7b")
    with seewhen.attach(model, method) as handle:
        logits = generate(model, inputs)
    assert handle.trace.lengths == (STEPS,)
    assert bool(torch.isfinite(logits).any(dim=-1).all())


def test_methods_that_need_a_softmax_layer_say_which_there_are() -> None:
    model, _ = tiny_shape("qwen3.5-4b")
    with pytest.raises(SeewhenError, match=r"softmax attention.*3"), seewhen.attach(model, "only"):
        pass
    with seewhen.attach(model, seewhen.method("only", layer=3)):
        generate(model, inputs_of("qwen3.5-4b"))


def test_the_methods_styles_and_presets_of_the_reproduction_page_exist() -> None:
    page = REPOSITORY / "docs" / "reproduce.md"
    if not page.is_file():
        pytest.skip("the documentation is not part of this installation")
    text = page.read_text(encoding="utf-8")
    named = [name for part in re.findall(r'--method "?([^\s"`]+)', text) for name in part.split(",")]
    named += re.findall(r"`((?:pai|vcd|cai)[:+-][^`\s]+)`", text)
    for data in ("coco", "aokvqa", "gqa"):
        for split in ("random", "popular", "adversarial"):
            for backbone in ("llava-1.5", "instructblip", "qwen-vl"):
                for name in named:
                    full = name.replace("$2", backbone).replace("$data", data).replace("$split", split)
                    for bench in ("chair", "pope", "mme"):
                        if full != "$method":
                            seewhen.method(full.replace("$only", f"only:{bench}"))
    styles = {*POPE_STYLES, *CHAIR_STYLES}
    assert set(re.findall(r"--style ([a-z][\w-]+)", text)) <= styles
    assert {"cai-llava", "only-instructblip", "only-qwen-vl"} <= {word for word in text.split() if word in styles}
