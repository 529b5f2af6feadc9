"""Whole layers and methods on our kernels, on a GPU: against their references, and captured against uncaptured.

Also runs without pytest: `python tests/decoding/fast/test_layers_gpu.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import seewhen
from decoding.fast.test_fast_gpu import differences
from decoding.test_gpu import pytestmark, run_checks  # noqa: F401  (the mark holds for this file too)
from seewhen.equations import where

RECURRENT = ((16, 32, 128, 128, 4), (2, 4, 8, 8, 4), (1, 3, 16, 40, 4), (2, 2, 24, 16, 2))


def recurrent_layer(key_heads, heads, d, e, taps, dtype, hidden=256):
    from transformers.models.qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

    config = Qwen3_5TextConfig(
        hidden_size=hidden, num_hidden_layers=1, layer_types=["linear_attention"],
        linear_num_key_heads=key_heads, linear_num_value_heads=heads,
        linear_key_head_dim=d, linear_value_head_dim=e, linear_conv_kernel_dim=taps,
    )  # fmt: skip
    layer = Qwen3_5GatedDeltaNet(config, 0)
    with torch.no_grad():
        for parameter in (layer.norm.weight, layer.dt_bias):
            parameter.normal_(1.0, 0.3)
    return layer.to("cuda", dtype).eval(), config


@torch.no_grad()
def test_recurrent_layers_equal_stock():
    from transformers import StaticCache

    from seewhen.decoding.fast.recurrent import _agree, _forward

    torch.manual_seed(0)
    for shape in RECURRENT:
        for dtype, bound in ((torch.float32, 1e-4), (torch.bfloat16, 3e-2)):
            layer, config = recurrent_layer(*shape, dtype)
            assert _agree(layer, layer.forward, _forward(layer), config), (shape, dtype)
            for rows in (1, 8):
                tokens = torch.randn(rows, 12, 256, device="cuda", dtype=dtype)
                caches = [StaticCache(config=config, max_cache_len=16) for _ in range(2)]
                for cache in caches:
                    layer(tokens[:, :4], cache_params=cache)
                single = [tokens[:, at : at + 1] for at in range(4, 12)]
                stock = torch.cat([layer(given, cache_params=caches[0]) for given in single])
                ours = torch.cat([_forward(layer)(given, cache_params=caches[1]) for given in single])
                assert (ours - stock).norm() <= bound * stock.norm(), (shape, dtype, rows)
                own, theirs = caches[1].layers[0], caches[0].layers[0]
                assert torch.equal(own.conv_states[0], theirs.conv_states[0]), (shape, dtype, rows)
                a, b = own.recurrent_states[0], theirs.recurrent_states[0]
                assert (a - b).norm() <= bound * b.norm(), (shape, dtype, rows)


def test_recurrent_models_equal_stock():
    names = {"regular": {}, "cai": {}, "cai-gla": {"threshold": -1.0}}
    found = {
        name: differences("qwen3_5", seewhen.method(name, **changes), "graph") for name, changes in names.items()
    }
    assert not any(found.values()), found


def test_four_matrices_in_one_launch_equal_their_references():
    from seewhen.decoding.kernels.linear_kernel import linear

    torch.manual_seed(0)
    for rows in (1, 3, 16):
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 6e-3)):
            x = torch.randn(rows, 1, 1280, device="cuda", dtype=dtype)
            weights = tuple(torch.randn(n, 1280, device="cuda", dtype=dtype) for n in (640, 320, 32, 33))
            for got, w in zip(linear(x, weights, (None,) * 4), weights, strict=True):
                exact = torch.nn.functional.linear(x.double(), w.double())
                assert (got - exact).norm() / exact.norm() < bound, (rows, dtype)


def test_relevance_equals_its_reference():
    from seewhen.decoding.kernels import relevance_kernel
    from seewhen.decoding.tilted_attention import Relevance

    torch.manual_seed(0)
    for rows, tokens, d, dtype in (
        (1, 576, 4096, torch.bfloat16),
        (8, 300, 2560, torch.bfloat16),
        (3, 9216, 96, torch.float32),
    ):
        units = where.unit(torch.randn(rows, tokens, d, device="cuda"))
        query = torch.randn(rows, 2, d, device="cuda", dtype=dtype)[:, -1]
        valid = torch.arange(tokens, device="cuda") < torch.randint(0, tokens, (rows, 1), device="cuda")
        index = torch.stack([torch.randperm(tokens + 500, device="cuda")[:tokens] for _ in range(rows)])
        index = index.masked_fill(~valid, 0)
        for relevance in (Relevance(), Relevance(floor=0.0, scale=5.0), Relevance("sigmoid", 1.0)):
            got = relevance.fused_weights(query, units, valid, 2 * rows)
            torch.testing.assert_close(got[:rows], relevance.weights(query, units, valid), atol=3e-4, rtol=0)
            assert not got[rows:].any()
            expected = torch.zeros(rows, tokens + 500, device="cuda").scatter_add(1, index, got[:rows])
            assert torch.equal(relevance_kernel.spread(got[:rows], index, valid, tokens + 500), expected)


def test_second_looks_equal_their_references():
    from seewhen.decoding.kernels import second_look_kernel
    from seewhen.decoding.recorder import Recorder
    from seewhen.methods.memvr import LookTwice, _Memory, top_entropy

    torch.manual_seed(0)
    for rows, count, d, dtype in (
        (1, 32064, 4096, torch.bfloat16),
        (5, 300, 96, torch.float32),
        (8, 152064, 512, torch.bfloat16),
    ):
        recorder = Recorder("summary", rows, 4, 4, torch.device("cuda"))
        recorder.declare("top_entropy", (rows, 4))
        recorder.declare("gate", (rows, 4), fill=False)
        head = torch.randn(count, d, device="cuda", dtype=dtype) / d**0.5
        states = torch.randn(rows, d, device="cuda", dtype=dtype) * torch.linspace(0.1, 9, rows, device="cuda")[
            :, None
        ].to(dtype)
        present = torch.ones(rows, dtype=torch.bool, device="cuda")
        value = top_entropy(states.float() @ head.float().T)
        threshold = float(value.sort().values[rows // 2]) - 1e-2
        open_, used = second_look_kernel.judge(states, head, present, None, threshold, recorder, 2)
        torch.testing.assert_close(recorder.buffers["top_entropy"][0, :, 1], value, atol=2e-3, rtol=0)
        assert torch.equal(open_, value > threshold) and torch.equal(open_, used)
        again, used = second_look_kernel.judge(states, head, present, used, -1.0, recorder, 3)
        assert torch.equal(again, ~open_) and used.all()
        none, _ = second_look_kernel.judge(
            states, torch.full_like(head, torch.nan), present, used, -1.0, recorder, 3
        )
        assert not none.any()
        features = torch.randn(rows, 570, d, device="cuda")
        x, output = (torch.randn(2 * rows, 1, d, device="cuda", dtype=dtype) for _ in range(2))
        size, up = features.abs().mean(dim=(1, 2), keepdim=True), torch.tensor(0.3, device="cuda")
        for activation in ("none", "silu"):
            plain = LookTwice((1,), 0.3, 0.75, activation, True)
            memory = _Memory(features, size, {1: (up, up)}, present)
            delta = plain._delta(x[:rows].float(), features, memory, 1)
            scale = output[:rows].float().abs().mean(-1, keepdim=True) / delta.abs().mean(-1, keepdim=True)
            mixed = (0.7 * output[:rows].float() + 0.3 * scale * delta).to(dtype)
            expected = torch.cat([torch.where(open_[:, None, None], mixed, output[:rows]), output[rows:]])
            got = second_look_kernel.look(
                x, output, features, size, None if activation == "none" else up, open_, 0.3
            )
            assert (got - expected).float().norm() <= 1e-2 * expected.float().norm(), (rows, activation)
            assert torch.equal(got[rows:], output[rows:])


def test_methods_of_their_own_equal_stock():
    methods = {
        "locore": seewhen.method("locore", beta=0.5, window=2),
        "sid": seewhen.method("sid"),
        "memvr": seewhen.method("memvr", threshold=0.0, ratio=0.5, after=0, before=4),
        "memvr:silu": seewhen.method("memvr", threshold=0.0, ratio=0.5, after=0, before=4, activation="silu"),
        "dola": seewhen.method("dola"),
    }
    found = {name: differences("llava", method, "graph", times=2) for name, method in methods.items()}
    assert not any(found.values()), found


if __name__ == "__main__":
    sys.exit(bool(run_checks(globals())))
