"""Qwen-VL beyond its training length, against a second, naive implementation in float64."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_qwen_vl import (
    close,
    steps,
    tiny_model,
    tokens,
)
from torch import nn

from seewhen.backbones.qwen_vl import QwenVLForConditionalGeneration
from seewhen.backbones.qwen_vl.modeling import ntk_factor


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
