"""Qwen-VL at work: images, batches, caches, beams, and what cannot work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_qwen_vl import (
    PAD,
    close,
    generated,
    image_ids,
    left_padded,
    pixels,
    steps,
    tiny_config,
    tiny_model,
    tokens,
)
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, StaticCache
from transformers.masking_utils import sdpa_mask

import seewhen
from seewhen.backbones.qwen_vl import QwenVLConfig
from seewhen.errors import InvalidInput, UnsupportedModel


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


@pytest.mark.parametrize("name", ["cai:reference", "pai", "m3id:paper:pope", "vcd", "sid", "only", "memvr"])
def test_methods_find_the_image_under_path_bytes(name: str) -> None:
    """The original tokenizer writes the image's path into the slots: to every method they are the image."""
    special = {
        "cai:reference": {"start_layer": 0, "threshold": -1.0, "contrast": 3.0},
        "sid": {"keep": 1, "layer": 1},
    }
    special["memvr"] = {"after": 0, "before": 2, "threshold": 0.0}
    method, model = seewhen.method(name, **special.get(name, {})), tiny_model()
    pads = torch.cat([image_ids(), tokens(1, 5)], dim=1)
    path = pads.clone()
    path[0, 1:3] = torch.tensor([7, 9])
    given = {"pixel_values": pixels(1), "attention_mask": torch.ones_like(pads)}
    expected, found = (
        seewhen.replay(model, {"input_ids": ids, **given}, [3, 4, 5], method) for ids in (pads, path)
    )
    assert found.trace.image_tokens == (4,)
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(found.gates, expected.gates)
