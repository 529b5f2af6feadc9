"""The Qwen-VL port: against the original code's golden file, and against a plain float64 recomputation."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, StaticCache
from transformers.masking_utils import sdpa_mask

from seewhen.errors import InvalidInput, UnsupportedModel
from seewhen.models.qwen_vl import QwenVLConfig, QwenVLForConditionalGeneration, save_original
from seewhen.models.qwen_vl.configuration import published_config
from seewhen.models.qwen_vl.modeling import ntk_factor
from seewhen.models.qwen_vl.vision import sine_cosine_grid

TOLERANCE = 2e-4
START, END, PAD = 50, 51, 52


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


def steps(model: nn.Module, prompt: dict[str, torch.Tensor], continuation: torch.Tensor) -> tuple[Any, Any]:
    """Cached decoding, teacher forced: logits and hidden states of the last position at every step."""
    outputs = model(**prompt, use_cache=True, output_hidden_states=True)
    logits, hidden = [outputs.logits[:, -1]], [torch.stack([h[:, -1] for h in outputs.hidden_states])]
    for token in continuation.unbind(1):
        outputs = model(
            input_ids=token[:, None], past_key_values=outputs.past_key_values, output_hidden_states=True
        )
        logits.append(outputs.logits[:, -1])
        hidden.append(torch.stack([h[:, -1] for h in outputs.hidden_states]))
    return torch.stack(logits), torch.stack(hidden)


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


# --- a tiny random model -------------------------------------------------------------------------------


def tiny_config(seq_length: int = 24, **changes: Any) -> QwenVLConfig:
    visual = {"image_size": 21, "patch_size": 7, "width": 16, "layers": 2, "heads": 2, "mlp_ratio": 2.0}
    values: dict[str, Any] = {
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "kv_channels": 16,
        "initializer_range": 0.3,
        "seq_length": seq_length,
        "resampler_head_dim": 8,
        "visual": visual | {"n_queries": 4, "output_dim": 32, "image_start_id": START},
    }
    return QwenVLConfig(**values | changes)


def tiny_model(seq_length: int = 24, **changes: Any) -> QwenVLForConditionalGeneration:
    torch.manual_seed(0)
    model = QwenVLForConditionalGeneration(tiny_config(seq_length, **changes)).eval()
    with torch.no_grad():  # stock initialisation has zero biases, which would hide a wrong bias
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.3)
    return model


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, START, (rows, length), generator=torch.Generator().manual_seed(seed))


def pixels(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, 21, 21, generator=torch.Generator().manual_seed(seed))


def image_ids() -> torch.Tensor:
    return torch.tensor([[START, PAD, PAD, PAD, PAD, END]])


def close(found: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, check_dtype=False)


def left_padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    width = max(row.shape[1] for row in rows)
    ids = torch.cat([nn.functional.pad(row, (width - row.shape[1], 0)) for row in rows])
    mask = torch.stack([(torch.arange(width) >= width - row.shape[1]).long() for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


def generated(model: nn.Module, count: int = 8, **inputs: Any) -> torch.Tensor:
    inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
    out = model.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
    return out[:, inputs["input_ids"].shape[1] :]


# --- beyond the training length: a second, naive implementation in float64 -------------------------------


def naive_logits(model: QwenVLForConditionalGeneration, ids: list[int], prompt: int) -> torch.Tensor:
    """All rows of the language model, one position and one head at a time, following the published rules."""
    config = model.config.text_config
    weights = {name: value.double() for name, value in model.state_dict().items()}
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    alpha = max(2 ** math.ceil(math.log(prompt / config.seq_length, 2) + 1) - 1, 1)
    base = 10000 * (alpha if config.use_dynamic_ntk else 1) ** (size / (size - 2))

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps).sqrt() * weight

    def rotated(x: torch.Tensor) -> torch.Tensor:  # [length, size]
        out = x.clone()
        for position in range(x.shape[0]):
            for i in range(size // 2):
                angle = position / base ** (2 * i / size)
                a, b = x[position, i], x[position, i + size // 2]
                out[position, i] = a * math.cos(angle) - b * math.sin(angle)
                out[position, i + size // 2] = b * math.cos(angle) + a * math.sin(angle)
        return out

    x = weights["model.language_model.embed_tokens.weight"][ids]
    for index in range(config.num_hidden_layers):
        w = {
            name.removeprefix(prefix): value
            for name, value in weights.items()
            if name.startswith(prefix := f"model.language_model.layers.{index}.")
        }
        y = norm(x, w["input_layernorm.weight"])
        q, k, v = (y @ w[f"self_attn.{n}_proj.weight"].T + w[f"self_attn.{n}_proj.bias"] for n in "qkv")
        mixed = torch.zeros_like(q)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            query, key = rotated(q[:, part]), rotated(k[:, part])
            if config.use_logn_attn:
                for i in range(len(ids)):
                    if i + 1 > config.seq_length:
                        query[i] *= math.log(i + 1, config.seq_length)
            scores = query @ key.T / math.sqrt(size)
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
            mixed[:, part] = scores.softmax(-1) @ v[:, part]
        x = x + mixed @ w["self_attn.o_proj.weight"].T
        y = norm(x, w["post_attention_layernorm.weight"])
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        x = x + (nn.functional.silu(gate) * up) @ w["mlp.down_proj.weight"].T
    return norm(x, weights["model.language_model.norm.weight"]) @ weights["lm_head.weight"].T


@pytest.mark.parametrize(("prompt", "alpha"), [(20, 1), (24, 1), (25, 3), (48, 3), (49, 7), (70, 7)])
@torch.no_grad()
def test_long_sequences(prompt: int, alpha: int) -> None:
    """The prompt fixes the rotary base; decoding then crosses further limits without changing it."""
    model, total = tiny_model(), prompt + 30
    ids = tokens(1, total, seed=prompt)
    expected = naive_logits(model, ids[0].tolist(), prompt)
    outputs = model(input_ids=ids[:, :prompt], use_cache=True)
    assert outputs.past_key_values.ntk_factor.item() == alpha
    close(outputs.logits[0], expected[:prompt])
    logits, _ = steps(model, {"input_ids": ids[:, :prompt]}, ids[:, prompt:])
    close(logits[:, 0], expected[prompt - 1 :])


@pytest.mark.parametrize("switch", ["use_dynamic_ntk", "use_logn_attn"])
@torch.no_grad()
def test_long_rules_can_be_switched_off(switch: str) -> None:
    model, ids = tiny_model(**{switch: False}), tokens(1, 60)
    off = model(input_ids=ids).logits
    close(off[0], naive_logits(model, ids[0].tolist(), 60))
    assert (off - tiny_model()(input_ids=ids).logits).abs().max() > 0.01


@torch.no_grad()
def test_published_length() -> None:
    """At the published 2,048: nothing happens up to it, something right happens one token later."""
    ids = tokens(1, 2049)
    long, plain = tiny_model(2048, num_hidden_layers=1), tiny_model(10**6, num_hidden_layers=1)
    torch.testing.assert_close(long(input_ids=ids[:, :-1]).logits, plain(input_ids=ids[:, :-1]).logits)
    expected = naive_logits(long, ids[0].tolist(), 2049)
    close(long(input_ids=ids).logits[0], expected, 5e-4)
    assert (plain(input_ids=ids).logits[0] - expected).abs().max() > 0.01


def test_ntk_factor_follows_the_published_formula() -> None:
    lengths = torch.arange(1, 40000)
    expected = [max(2 ** math.ceil(math.log(n / 2048, 2) + 1) - 1, 1) for n in lengths.tolist()]
    assert ntk_factor(lengths, 2048).tolist() == expected


# --- images, batches, caches ---------------------------------------------------------------------------


@torch.no_grad()
def test_images_anywhere_in_the_text() -> None:
    """Text before, between and after two images: the slots hold exactly the image features, in order."""
    model, pictures = tiny_model(), pixels(2)
    before, between, after = tokens(1, 3, 1), tokens(1, 2, 2), tokens(1, 4, 3)
    ids = torch.cat([before, image_ids(), between, image_ids(), after], dim=1)
    features = torch.cat(model.get_image_features(pictures).pooler_output)
    embeds = model.get_input_embeddings()(ids).clone()
    embeds[0, 4:8], embeds[0, 12:16] = features[:4], features[4:]
    expected = model(inputs_embeds=embeds).logits
    close(model(input_ids=ids, pixel_values=pictures).logits, expected, 1e-5)
    swapped = model(input_ids=ids, pixel_values=pictures.flip(0)).logits
    assert (swapped - expected).abs().max() > 0.01


@torch.no_grad()
def test_left_padded_rows_equal_their_own_runs() -> None:
    """An image row beyond the training length, a text-only row, and a row with two images, in one batch."""
    model, pictures = tiny_model(), pixels(3)
    rows = [
        torch.cat([tokens(1, 2), image_ids(), tokens(1, 30, 1)], dim=1),
        tokens(1, 7, 2),
        torch.cat([image_ids(), tokens(1, 1, 3), image_ids(), tokens(1, 6, 4)], dim=1),
    ]
    together = generated(model, **left_padded(rows), pixel_values=pictures)
    alone = [
        generated(model, input_ids=rows[0], pixel_values=pictures[:1]),
        generated(model, input_ids=rows[1]),
        generated(model, input_ids=rows[2], pixel_values=pictures[1:]),
    ]
    assert together.tolist() == torch.cat(alone).tolist()
    batch = left_padded(rows)
    positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    logits = model(**batch, position_ids=positions, pixel_values=pictures).logits
    close(logits[0, -1], model(input_ids=rows[0], pixel_values=pictures[:1]).logits[0, -1], 1e-4)
    close(logits[1, -1], model(input_ids=rows[1]).logits[0, -1], 1e-4)


@torch.no_grad()
def test_beams_carry_their_images() -> None:
    model, pictures = tiny_model(), pixels(2)
    row = torch.cat([image_ids(), image_ids(), tokens(1, 5)], dim=1)
    both = torch.cat([row, row])
    together = generated(model, input_ids=both, pixel_values=torch.cat([pictures, -pictures]), num_beams=3)
    first = generated(model, input_ids=row, pixel_values=pictures, num_beams=3)
    second = generated(model, input_ids=row, pixel_values=-pictures, num_beams=3)
    assert together.tolist() == torch.cat([first, second]).tolist()


@torch.no_grad()
def test_static_cache_and_one_graph() -> None:
    """Decoding with a static cache compiles to one graph and gives the logits of the growing cache."""
    model = tiny_model()
    ids = torch.cat([image_ids(), tokens(1, 20), tokens(1, 12, 1)], dim=1)
    expected, _ = steps(model, {"input_ids": ids[:, :26], "pixel_values": pixels(1)}, ids[:, 26:])
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    cache = StaticCache(config=model.config, max_cache_len=40)
    logits = [model(input_ids=ids[:, :26], pixel_values=pixels(1), past_key_values=cache).logits[:, -1]]
    with torch._dynamo.config.patch(error_on_recompile=True):
        for at in range(26, ids.shape[1]):
            outputs = compiled(
                input_ids=ids[:, at : at + 1], position_ids=torch.tensor([[at]]), past_key_values=cache
            )
            logits.append(outputs.logits[:, -1].clone())
    close(torch.stack(logits), expected, 1e-4)


@torch.no_grad()
def test_static_generation_and_reuse_of_the_cache() -> None:
    """The factor of a long request must not leak into a short one that reuses the static cache."""
    model = tiny_model()
    cache = StaticCache(config=model.config, max_cache_len=64)
    for length in (40, 9, 1, 30):
        ids = tokens(1, length, seed=length)
        expected = generated(model, input_ids=ids)
        cache.reset()
        found = generated(model, input_ids=ids, past_key_values=cache)
        assert found.tolist() == expected.tolist()


@torch.no_grad()
def test_two_conversations_do_not_share_state() -> None:
    """The rotary factor lives in each cache, not in the module."""
    model = tiny_model()
    long, short = tokens(1, 40, 1), tokens(1, 5, 2)
    tail = tokens(1, 1, 3)
    expected = [steps(model, {"input_ids": ids}, tail)[0][-1] for ids in (long, short)]
    a, b = (model(input_ids=ids, use_cache=True).past_key_values for ids in (long, short))
    close(model(input_ids=tail, past_key_values=a).logits[:, -1], expected[0], 1e-5)
    close(model(input_ids=tail, past_key_values=b).logits[:, -1], expected[1], 1e-5)


@torch.no_grad()
def test_rows_of_a_cache_can_be_repeated() -> None:
    """One prompt of each kind, then two continuations of each: every row keeps its prompt's factor."""
    model = tiny_model()
    rows, tails = [tokens(1, 40, 1), tokens(1, 20, 2)], tokens(4, 8, 3)
    expected = [steps(model, {"input_ids": rows[i // 2]}, tails[i : i + 1])[0][-1] for i in range(4)]
    batch = left_padded(rows)
    positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    cache = model(**batch, position_ids=positions, use_cache=True).past_key_values
    cache.batch_repeat_interleave(2)
    mask, last = (x.repeat_interleave(2, dim=0) for x in (batch["attention_mask"], positions[:, -1:]))
    for step, token in enumerate(tails.unbind(1), start=1):
        mask = nn.functional.pad(mask, (0, 1), value=1)
        outputs = model(
            input_ids=token[:, None], attention_mask=mask, position_ids=last + step, past_key_values=cache
        )
    close(outputs.logits[:, -1], torch.cat(expected), 1e-4)
    assert cache.ntk_factor.flatten().tolist() == [3, 3, 1, 1]


@torch.no_grad()
def test_a_batch_without_position_ids() -> None:
    model, ids = tiny_model(), tokens(2, 30)
    cache = model(input_ids=ids[:, :-1], use_cache=True).past_key_values
    found = model(input_ids=ids[:, -1:], past_key_values=cache).logits
    close(found, model(input_ids=ids).logits[:, -1:], 1e-4)


@torch.no_grad()
def test_a_registered_attention_function_sees_every_layer_and_its_arguments() -> None:
    seen: list[tuple[int, torch.Tensor]] = []
    sdpa: Callable[..., Any] = AttentionInterface._global_mapping["sdpa"]

    def probe(module: nn.Module, *args: Any, mark: torch.Tensor | None = None, **kwargs: Any) -> Any:
        assert mark is not None
        seen.append((module.layer_idx, mark))
        return sdpa(module, *args, **kwargs)

    AttentionInterface.register("qwen_vl_test_probe", probe)
    AttentionMaskInterface.register("qwen_vl_test_probe", sdpa_mask)
    model = tiny_model()
    ids = torch.cat([tokens(1, 2), image_ids(), tokens(1, 4)], dim=1)
    expected = model(input_ids=ids, pixel_values=pixels(1)).logits
    model.set_attn_implementation({"text_config": "qwen_vl_test_probe"})
    mark = torch.ones(1)
    found = model(input_ids=ids, pixel_values=pixels(1), mark=mark).logits
    torch.testing.assert_close(found, expected)
    assert [index for index, _ in seen] == [0, 1, 2] and all(value is mark for _, value in seen)
    assert model.model.visual.config._attn_implementation == "sdpa"


def test_generic_accessors() -> None:
    model = tiny_model()
    assert model.get_decoder() is model.model.language_model
    assert len(model.get_decoder().layers) == 3 and model.get_decoder().norm is not None
    assert model.get_output_embeddings() is model.lm_head
    assert model.get_input_embeddings() is model.get_decoder().embed_tokens
    text = model.config.get_text_config(decoder=True)
    assert text.num_hidden_layers == 3 and text.layer_types == ["full_attention"] * 3
    assert model.config.image_token_id == PAD
    features = model.get_image_features(pixels(2)).pooler_output
    assert [tuple(feature.shape) for feature in features] == [(4, 32)] * 2
    assert isinstance(model.get_image_features(pixels(1), return_dict=False), tuple)


@torch.no_grad()
def test_resampler_is_stock_multihead_attention() -> None:
    pool = tiny_model().model.visual.attn_pool
    stock = nn.MultiheadAttention(32, pool.attn.heads, batch_first=True)
    parts = (pool.attn.q_proj, pool.attn.k_proj, pool.attn.v_proj)
    stock.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    stock.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    stock.out_proj.load_state_dict(pool.attn.out_proj.state_dict())
    query, key, value = (torch.randn(2, n, 32) for n in (4, 9, 9))
    close(pool.attn(query, key, value), stock(query, key, value)[0], 1e-5)


def test_errors_name_the_way_out() -> None:
    model = tiny_model()
    ids = torch.cat([image_ids(), tokens(1, 3)], dim=1)
    with pytest.raises(InvalidInput, match="2 image"):
        model(input_ids=ids, pixel_values=pixels(2))
    with pytest.raises(InvalidInput, match="without input_ids"):
        model(inputs_embeds=model.get_input_embeddings()(ids), pixel_values=pixels(1))
    with pytest.raises(UnsupportedModel, match="text-only"):
        QwenVLConfig(hidden_size=32, num_attention_heads=2)
    with pytest.raises(UnsupportedModel, match="Partial rotary"):
        tiny_config(rotary_pct=0.5)


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
    loaded = QwenVLForConditionalGeneration.from_pretrained(tmp_path).eval()
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
        loaded = QwenVLForConditionalGeneration.from_pretrained(tmp_path).eval()
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
