"""Whole layers and methods on our kernels, against the stock modules and the plain path, in Triton's interpreter.

Run as a program: the interpreter must be chosen before Triton is imported.
"""

from __future__ import annotations

from interpreted import compare, same_in_both_loops  # isort: skip  # chooses the interpreter

import torch
from transformers import StaticCache
from transformers.models.qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

import packed
import seewhen
import tiny

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
            changed = [
                layer for layer in backbone.layers if "forward" in getattr(layer, "linear_attn", layer).__dict__
            ]
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


def second_looks() -> None:
    """Judging and looking against the plain functions. Where all rows have looked, the head is not read."""
    from seewhen.decoding.kernels import second_look_kernel
    from seewhen.decoding.recorder import Recorder
    from seewhen.methods.memvr import LookTwice, _Memory, top_entropy

    present, device = torch.tensor([True, False, True]), torch.device("cpu")
    recorder = Recorder("summary", 3, 5, 4, device)
    recorder.declare("top_entropy", (3, 5))
    recorder.declare("gate", (3, 5), fill=False)
    head = torch.randn(300, 48)
    head[7] = head[8]  # a tie among the largest logits
    used, before = None, torch.zeros(3, dtype=torch.bool)
    for layer, sizes in ((2, (0.02, 0.02, 1.0)), (3, (0.02, 0.02, 1.0)), (4, (0.02, 0.02, 0.02))):
        states = torch.randn(3, 48) * torch.tensor(sizes)[:, None]
        states[2] += 0.3 * head[7] * sizes[2]
        open_, used = second_look_kernel.judge(states, head, present, used, 0.75, recorder, layer)
        value = top_entropy(states @ head.T)
        assert torch.equal(open_, present & (value > 0.75) & ~before), layer
        record = recorder.buffers["top_entropy"][0, :, layer - 1]
        torch.testing.assert_close(record[~before], value[~before], atol=1e-5, rtol=0)
        assert record[before].isnan().all() and torch.equal(recorder.buffers["gate"][0, :, layer], open_)
        before |= open_
        assert torch.equal(used, before)
    assert before.tolist() == [True, False, True]
    nothing = torch.full_like(head, torch.nan)
    open_, _ = second_look_kernel.judge(
        states, nothing, present, torch.ones(3, dtype=torch.bool), 0.75, recorder, 1
    )
    assert not open_.any()

    features, states, output = torch.randn(2, 70, 48), torch.randn(3, 1, 48), torch.randn(3, 1, 48)
    size, up = features.abs().mean(dim=(1, 2), keepdim=True), torch.tensor(0.3)
    for activation in ("none", "silu"):
        plain = LookTwice((1,), 0.3, 0.75, activation, True)
        memory = _Memory(features, size, {1: (up, torch.tensor(0.2))}, present[:2])
        delta = plain._delta(states[:2], features, memory, 1)
        scale = output[:2].abs().mean(dim=-1, keepdim=True) / delta.abs().mean(dim=-1, keepdim=True)
        for open_ in (torch.tensor([True, False]), torch.tensor([True, True])):
            expected = output.clone()
            expected[:2][open_] = (0.7 * output[:2] + 0.3 * scale * delta)[open_]
            given = None if activation == "none" else up
            got = second_look_kernel.look(states, output, features, size, given, open_, 0.3)
            torch.testing.assert_close(got, expected, atol=1e-5, rtol=0)
            assert torch.equal(got[2], output[2])


def methods() -> None:
    """Methods with attention or hooks of their own."""
    same_in_both_loops("llava", "locore", beta=0.5, window=2)
    same_in_both_loops("llava", "sid")
    same_in_both_loops("llava", "memvr", threshold=0.9985, ratio=0.5, after=0, before=4)
    same_in_both_loops("llava", "memvr", threshold=0.0, ratio=0.5, after=0, before=4, activation="silu")


def packed_weights() -> None:
    """Our kernels read no packed weight, neither the head's nor a layer's, and serve what else there is."""
    model, whole = packed.pair("llava", head_dim=16)
    inputs, tokens = tiny.inputs("llava", text_lengths=(4,)), []
    for name, changes in (("cai", {"start_layer": 1}), ("memvr", {"threshold": 0.3, "after": 0, "before": 3})):
        for each, fast in ((model, "off"), (model, "graph"), (whole, "graph")):
            with seewhen.attach(each, seewhen.method(name, **changes), fast=fast):
                tokens.append(each.generate(**inputs, max_new_tokens=4, do_sample=False))
        assert torch.equal(tokens[-3], tokens[-2]) and torch.equal(tokens[-2], tokens[-1]), name


if __name__ == "__main__":
    compare(globals())
