"""Whole layers and methods on our kernels, against the stock modules and the plain path, in Triton's interpreter.

Run as a program: the interpreter must be chosen before Triton is imported.
"""

from __future__ import annotations

import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"

import torch
from transformers import StaticCache
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

import seewhen
import tiny

warnings.simplefilter("ignore")

# Key heads, value heads, widths of both, taps of the convolution.
RECURRENT = ((2, 4, 8, 8, 4), (1, 3, 16, 40, 4), (2, 2, 24, 16, 2))


def recurrent_layer(key_heads: int, heads: int, d: int, e: int, taps: int, dtype: torch.dtype):
    config = Qwen3_5TextConfig(
        hidden_size=32, num_hidden_layers=1, layer_types=["linear_attention"],
        linear_num_key_heads=key_heads, linear_num_value_heads=heads,
        linear_key_head_dim=d, linear_value_head_dim=e, linear_conv_kernel_dim=taps,
    )  # fmt: skip
    layer = Qwen3_5GatedDeltaNet(config, 0).to(dtype).eval()
    with torch.no_grad():
        for parameter in (layer.norm.weight, layer.dt_bias):
            parameter.normal_(1.0, 0.3)
    return layer, config


@torch.no_grad()
def recurrences() -> None:
    from seewhen.decoding.fast.recurrent import _agree, _forward, _is_recurrent

    for shape in RECURRENT:
        for dtype, bound in ((torch.float32, 2e-5), (torch.bfloat16, 5e-2)):
            layer, config = recurrent_layer(*shape, dtype)
            assert _is_recurrent(layer) and _agree(layer, layer.forward, _forward(layer), config), (shape, dtype)
            for rows in (1, 3):
                tokens = torch.randn(rows, 9, 32, dtype=dtype)
                caches = [StaticCache(config=config, max_cache_len=16) for _ in range(2)]
                for cache in caches:
                    layer(tokens[:, :4], cache_params=cache)
                held = caches[1].layers[0].conv_states[0], caches[1].layers[0].recurrent_states[0]
                single = [tokens[:, at : at + 1] for at in range(4, 9)]
                stock = torch.cat([layer(given, cache_params=caches[0]) for given in single])
                ours = torch.cat([_forward(layer)(given, cache_params=caches[1]) for given in single])
                assert (ours - stock).norm() <= bound * stock.norm(), (shape, dtype, rows)
                own = caches[1].layers[0].conv_states[0], caches[1].layers[0].recurrent_states[0]
                assert own[0] is held[0] and own[1] is held[1]  # captured steps know their addresses
                theirs = caches[0].layers[0]
                assert torch.equal(own[0], theirs.conv_states[0])
                error = (own[1] - theirs.recurrent_states[0]).norm() / theirs.recurrent_states[0].norm()
                assert error < bound, (shape, dtype, error)


@torch.no_grad()
def recurrent_prompts() -> None:
    """What is not one token after a cache goes the stock way, bit for bit."""
    from seewhen.decoding.fast.recurrent import _forward

    layer, config = recurrent_layer(*RECURRENT[0], torch.float32)
    tokens, ours = torch.randn(2, 4, 32), _forward(layer)
    assert torch.equal(ours(tokens), layer(tokens))
    caches = [StaticCache(config=config, max_cache_len=16) for _ in range(2)]
    for part in (tokens[:, :1], tokens[:, 1:3]):  # the first token of all, then two at once
        assert torch.equal(ours(part, cache_params=caches[0]), layer(part, cache_params=caches[1]))
    mask = torch.tensor([[True], [False]])
    last = tokens[:, 3:]
    assert torch.equal(
        ours(last, cache_params=caches[0], attention_mask=mask),
        layer(last, cache_params=caches[1], attention_mask=mask),
    )


def recurrent_models() -> None:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.fast.modules import swapped
    from seewhen.decoding.fast.recurrent import recurrent_layers

    for family, count in (("qwen3_5", 2), ("llava", 0)):
        backbone = Backbone.of(tiny.model(family))
        assert len(list(recurrent_layers(backbone))) == count
        with swapped(backbone):
            changed = [layer for layer in backbone.layers if "forward" in getattr(layer, "linear_attn", layer).__dict__]
        assert len(changed) == count


def relevances() -> None:
    from seewhen.decoding.kernels import relevance_kernel
    from seewhen.decoding.tilted_attention import Relevance
    from seewhen.equations import where

    for rows, tokens, d, dtype in ((1, 7, 96, torch.float32), (3, 20, 1100, torch.bfloat16)):
        units = where.unit(torch.randn(rows, tokens, d))
        query = torch.randn(rows, 2, d, dtype=dtype)[:, -1]  # a view, as a method hands it over
        valid = torch.arange(tokens) < torch.tensor([tokens, 0, tokens - 3])[:rows, None]
        index = torch.stack([torch.randperm(64)[:tokens] for _ in range(rows)]).masked_fill(~valid, 0)
        assert relevance_kernel.takes(query, units, valid)
        for relevance in (Relevance(), Relevance(floor=0.0, scale=5.0), Relevance("sigmoid", 1.0)):
            got = relevance.fused_weights(query, units, valid, rows + 2)
            plain = relevance.weights(query, units, valid)
            torch.testing.assert_close(got[:rows], plain, atol=5e-5, rtol=0)
            assert not got[rows:].any() and not got[:rows][~valid].any()
            expected = torch.zeros(rows, 64).scatter_add(1, index, got[:rows])
            assert torch.equal(relevance_kernel.spread(got[:rows], index, valid, 64), expected)
        one_more = relevance_kernel.spread(got[:rows], index + 1200, valid, 1300)  # several stretches of zeros
        assert torch.equal(one_more[:, 1200:1264], expected) and one_more.sum() == expected.sum()
    assert not Relevance("uniform").fuses(query, units, valid)


if __name__ == "__main__":
    for part in sys.argv[1:]:
        torch.manual_seed(0)
        globals()[part]()
        print(part, "equal", flush=True)
