"""The Qwen-VL port: the original code's golden file, and the published layout."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_qwen_vl import (
    START,
    close,
    image_ids,
    pixels,
    steps,
    tiny_config,
    tiny_model,
    tokens,
)

import tiny
from seewhen.backbones.qwen_vl import QwenVLConfig, QwenVLForConditionalGeneration, save_original
from seewhen.backbones.qwen_vl.configuration import published_config
from seewhen.backbones.qwen_vl.vision import sine_cosine_grid

# --- the original code's numbers -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden_directory() -> Path:
    shared = Path(os.environ.get("SEEWHEN_SHARED", Path(__file__).parents[3] / "shared"))
    directory = shared / "golden" / "qwen_vl"
    if not directory.is_dir():
        pytest.skip(f"the golden files of Qwen-VL are not at {directory} (set SEEWHEN_SHARED)")
    return directory


@pytest.fixture(scope="module")
def golden(golden_directory: Path) -> dict[str, torch.Tensor]:
    return load_file(golden_directory / "golden.safetensors")


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def golden_model(golden_directory: Path, request: pytest.FixtureRequest) -> QwenVLForConditionalGeneration:
    model, report = QwenVLForConditionalGeneration.from_pretrained(
        golden_directory, attn_implementation=request.param, output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    return model.eval()


@torch.no_grad()
def test_golden(golden_model: QwenVLForConditionalGeneration, golden: dict[str, torch.Tensor]) -> None:
    pixels = golden["pixel_values"]
    close(torch.stack(golden_model.get_image_features(pixels).pooler_output), golden["image_embeds"])
    prompt = {"input_ids": golden["input_ids"], "pixel_values": pixels}
    close(golden_model(**prompt).logits[0], golden["prefill_logits"])
    logits, hidden = steps(golden_model, prompt, golden["continuation"])
    close(logits[:, 0], golden["step_logits"])
    close(hidden[:, :, 0], golden["step_hidden_states"])
    logits, _ = steps(golden_model, {"input_ids": golden["textonly_input_ids"]}, golden["continuation"])
    close(logits[:, 0], golden["textonly_step_logits"])


@torch.no_grad()
def test_path_bytes_and_pads_give_the_same(
    golden_model: QwenVLForConditionalGeneration, golden: dict[str, torch.Tensor]
) -> None:
    """The original tokenizer writes the image path into the slots, our processor writes pads only."""
    ids = golden["input_ids"].clone()
    ids[golden_model.model.image_slots(ids)] = golden_model.config.image_token_id
    assert (ids == golden_model.config.image_token_id).sum() == golden_model.config.image_seq_length
    close(golden_model(input_ids=ids, pixel_values=golden["pixel_values"]).logits[0], golden["prefill_logits"])


def test_original_position_table(golden_directory: Path) -> None:
    table = load_file(golden_directory / "model.safetensors")["transformer.visual.attn_pool.pos_embed"]
    close(sine_cosine_grid(table.shape[1], math.isqrt(table.shape[0])), table, 1e-6)


# --- the published layout ------------------------------------------------------------------------------


@torch.no_grad()
def test_round_trip_of_the_published_layout(tmp_path: Path) -> None:
    model = tiny_model()
    ids = torch.cat([image_ids(), tokens(1, 5)], dim=1)
    expected = model(input_ids=ids, pixel_values=pixels(1)).logits
    save_original(model, tmp_path, max_shard_size="20KB")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["QWenLMHeadModel"] and config["visual"]["image_start_id"] == START
    names = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(names.values())) > 1, "the shards were meant to be several"
    block = {name.removeprefix("transformer.h.1.") for name in names if name.startswith("transformer.h.1.")}
    assert block == {
        *("attn.c_attn.weight", "attn.c_attn.bias", "attn.c_proj.weight", "ln_1.weight", "ln_2.weight"),
        *("mlp.w1.weight", "mlp.w2.weight", "mlp.c_proj.weight"),
    }
    assert {"transformer.wte.weight", "transformer.ln_f.weight", "lm_head.weight"} <= names.keys()
    assert "transformer.visual.attn_pool.attn.in_proj_weight" in names
    assert "transformer.visual.transformer.resblocks.0.attn.in_proj.weight" in names
    loaded = tiny.aligned(QwenVLForConditionalGeneration.from_pretrained(tmp_path)).eval()
    assert torch.equal(loaded(input_ids=ids, pixel_values=pixels(1)).logits, expected)
    save_original(loaded, tmp_path / "again")
    assert load_file(tmp_path / "again" / "model.safetensors").keys() == names.keys()


def test_round_trip_equals_the_original_file(golden_directory: Path, tmp_path: Path) -> None:
    model = QwenVLForConditionalGeneration.from_pretrained(golden_directory)
    save_original(model, tmp_path)
    saved, original = (load_file(d / "model.safetensors") for d in (tmp_path, golden_directory))
    assert saved.keys() == original.keys()
    assert all(torch.equal(saved[name], original[name]) for name in original)


@torch.no_grad()
def test_native_names_load_too(tmp_path: Path) -> None:
    """A checkpoint saved by transformers, with our configuration and either key naming."""
    model = tiny_model()
    ids = tokens(1, 5)
    for original in (True, False):
        model.save_pretrained(tmp_path, save_original_format=original)
        assert "text_config" in json.loads((tmp_path / "config.json").read_text())
        names = load_file(tmp_path / "model.safetensors").keys()
        assert any(name.startswith("transformer.") for name in names) == original
        loaded = tiny.aligned(QwenVLForConditionalGeneration.from_pretrained(tmp_path)).eval()
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)


def test_a_missing_or_strange_weight_is_reported(tmp_path: Path) -> None:
    save_original(tiny_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["transformer.h.7.ln_1.weight"] = weights.pop("transformer.h.2.ln_1.weight")
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, report = QwenVLForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {"model.language_model.layers.2.input_layernorm.weight"}
    assert report["unexpected_keys"] == {"model.language_model.layers.7.input_layernorm.weight"}


def test_configuration_round_trip() -> None:
    config = tiny_config()
    assert published_config(QwenVLConfig(**published_config(config))) == published_config(config)
    nested = QwenVLConfig.from_dict(config.to_dict())
    assert nested.text_config.intermediate_size == 48 and nested.text_config.seq_length == 24
    assert nested.vision_config.hidden_size == nested.vision_config.width == 16
    assert published_config(nested) == published_config(config)


def test_published_defaults() -> None:
    """The fields the published config.json gives, and the sizes they imply."""
    config = QwenVLConfig(
        hidden_size=4096,
        intermediate_size=22016,
        num_attention_heads=32,
        num_hidden_layers=32,
        vocab_size=151936,
        seq_length=2048,
        max_position_embeddings=8192,
        visual={
            **{"heads": 16, "image_size": 448, "image_start_id": 151857, "layers": 48, "mlp_ratio": 4.9231},
            **{"output_dim": 4096, "patch_size": 14, "width": 1664},
        },
        auto_map={"AutoConfig": "configuration_qwen.QWenConfig"},
        torch_dtype="bfloat16",
    )
    assert config.image_token_id == 151859 and config.image_seq_length == 256
    assert config.text_config.intermediate_size == 11008 and not hasattr(config, "auto_map")
    with torch.device("meta"):
        model = QwenVLForConditionalGeneration(config)
    assert model.model.visual.transformer["resblocks"][0].mlp["c_fc"].out_features == 8192
    assert sum(p.numel() for p in model.parameters()) == 9_656_935_168
