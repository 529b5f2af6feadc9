"""Our GPU kernels against their references in Triton's interpreter, and the fast loop with all of them.

Run as a program: the interpreter must be chosen before Triton is imported.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch

import seewhen
import tiny
from seewhen.decoding.fast import resolve
from seewhen.decoding.kernels import attention_kernel, gate_kernel, linear_kernel
from seewhen.equations import when

warnings.simplefilter("ignore")


def linears() -> None:
    for rows in (1, 2, 5, 16, 29):
        x = torch.randn(rows, 1, 96)
        weights = tuple(torch.randn(count, 96) for count in (40, 16, 24))
        biases = tuple(torch.randn(weight.shape[0]) for weight in weights)
        for chosen in (weights, weights[:2], weights[:1]):
            for given in ((None,) * len(chosen), biases[: len(chosen)]):
                for got, w, b in zip(linear_kernel.linear(x, chosen, given), chosen, given, strict=True):
                    torch.testing.assert_close(got, torch.nn.functional.linear(x, w, b), atol=5e-5, rtol=0)


def gates() -> None:
    for rows in (1, 2, 5):
        states, head = torch.randn(rows, 96), 0.3 * torch.randn(300, 96)
        torch.testing.assert_close(
            gate_kernel.entropy(states, head), when.entropy(states @ head.T), atol=1e-5, rtol=0
        )
    sure = torch.zeros(1, 96)
    sure[0, 0] = 1000.0
    head = torch.zeros(300, 96)
    head[7, 0] = 1.0
    assert gate_kernel.entropy(sure, head).item() == 0.0


def decisions() -> None:
    from seewhen.decoding.recorder import Recorder
    from seewhen.equations.when import Gate

    head, valid = 0.3 * torch.randn(300, 96), torch.tensor([True, False, True])
    for gate in (Gate(), Gate(threshold=0.7, base=10.0)):
        recorder = Recorder("summary", 3, 4, 8, torch.device("cpu"))
        for name in ("entropy", "threshold"):
            recorder.declare(name, (3, 4))
        recorder.declare("gate", (3, 4), fill=False)
        ours, plain = (when.RunningEntropy.zeros(3, torch.device("cpu")) for _ in range(2))
        for step in range(5):
            states = torch.randn(3, 96) * torch.tensor([0.1, 1.0, 3.0])[:, None]
            history = ours if gate.threshold is None else None
            got = gate_kernel.decide(states, head, valid, gate, history, recorder, 2)
            value = when.entropy(states @ head.T, gate.base)
            limit = torch.full((3,), gate.threshold or 0.0)
            if gate.threshold is None:
                limit = plain.threshold(gate.sd_factor, gate.start)
                plain.update(value)
            assert torch.equal(got, valid & (value > limit))
            torch.testing.assert_close(recorder.buffers["entropy"][step, :, 1], value, atol=1e-5, rtol=0)
            torch.testing.assert_close(recorder.buffers["threshold"][step, :, 2], limit, atol=1e-5, rtol=0)
            assert torch.equal(recorder.buffers["gate"][step, :, 2], got)
            recorder.advance(None)
        for a, b in zip(ours.tensors(), plain.tensors(), strict=True):
            assert gate.threshold is not None or torch.allclose(a, b, atol=1e-5)
        assert recorder.buffers["gate"][:, :, [0, 1, 3]].sum() == 0


def attentions() -> None:
    rows, heads, key_heads, d = 2, 4, 2, 32
    for columns in (70, 260):
        query = torch.randn(rows, heads, 1, d)
        key, value = (torch.randn(rows, key_heads, columns, d) for _ in range(2))
        seen = torch.rand(rows, 1, 1, columns) > 0.3
        seen[..., columns // 2 :] = False  # whole stretches are empty
        added = torch.zeros(rows, 1, 1, columns).masked_fill(~seen, -1e30)
        weights = torch.rand(rows, columns)
        gate = torch.tensor([True, False])
        for mask in (None, seen, added):
            plain, _ = attention_kernel.attention(query, key, value, mask, d**-0.5)
            for form in ("none", "score", "exponential"):
                got, lse = attention_kernel.attention(query, key, value, mask, d**-0.5, weights, gate, form, 0.7)
                scores = (query @ key.repeat_interleave(2, 1).transpose(2, 3) * d**-0.5)[:, :, 0]
                lift = {"none": 0.0, "score": scores.abs(), "exponential": 1.0}[form]
                scores = scores + 0.7 * lift * weights[:, None] * gate[:, None, None]
                if mask is not None:
                    scores = scores.masked_fill(~seen[:, 0], -torch.inf)
                exact = torch.einsum("rhc,rhcd->rhd", scores.softmax(-1), value.repeat_interleave(2, 1))
                torch.testing.assert_close(got[:, 0], exact, atol=5e-6, rtol=0)
                torch.testing.assert_close(lse, scores.logsumexp(-1), atol=5e-6, rtol=0)
                assert torch.equal(got[1], plain[1])  # a closed gate gives the very bits of no tilt


def other_attentions() -> None:
    """What the kernel does not compute goes to SDPA: narrower values, biases of positions."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from seewhen.decoding.hosting import FAST, hosted_name

    module = torch.nn.Module()
    module.is_causal, module.num_key_value_groups = True, 2
    query, key, value = torch.randn(2, 4, 1, 32), torch.randn(2, 2, 70, 32), torch.randn(2, 2, 70, 32)
    bias = torch.randn(1, 4, 1, 70)
    for given, more in (((query, key, value[..., :16]), {}), ((query, key, value), {"position_bias": bias})):
        got, expected = (
            ALL_ATTENTION_FUNCTIONS[name](module, *given, None, scaling=0.2, **more)[0]
            for name in (hosted_name(FAST), "sdpa")
        )
        torch.testing.assert_close(got, expected)


def forked_attentions() -> None:
    """Forks of a row are queries that share its keys and values, but for the newest token's."""
    held, main, heads, key_heads, d, columns, newest = 3, 2, 4, 2, 32, 150, 133
    key, value = (torch.randn(held, key_heads, columns, d) for _ in range(2))
    seen = torch.rand(held, 1, 1, columns) > 0.3
    seen[..., newest], seen[..., newest + 1 :] = True, False
    weights = torch.rand(held, columns)
    weights[:, newest] = 0.0
    for paths in (2, 4, 8):
        rows = held + (paths - 1) * main
        own = [*range(held), *(row for _ in range(paths - 1) for row in range(main))]
        query, gate = torch.randn(rows, heads, 1, d), torch.rand(rows) > 0.4
        keys, values = torch.randn(2, rows, key_heads, 1, d)
        for fresh in (None, (keys, values, torch.tensor([newest]))):
            all_keys, all_values = key[own], value[own]
            if fresh is not None:
                all_keys[:, :, newest], all_values[:, :, newest] = keys[:, :, 0], values[:, :, 0]
            for form in ("score", "exponential"):
                given = (d**-0.5, weights, gate, form, 0.7)
                got, lse = attention_kernel.attention(query, key, value, seen, *given, main, fresh)
                alone, alone_lse = attention_kernel.attention(
                    query, all_keys, all_values, seen[own], d**-0.5, weights[own], gate, form, 0.7
                )
                torch.testing.assert_close(got, alone, atol=5e-6, rtol=0)
                torch.testing.assert_close(lse, alone_lse, atol=5e-6, rtol=0)


def norms() -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    from seewhen.decoding.fast.modules import _epsilon, _form
    from seewhen.decoding.kernels.norm_kernel import rms_norm

    for cls, offset in ((LlamaRMSNorm, False), (Gemma3RMSNorm, True)):
        for dtype in (torch.float32, torch.bfloat16):
            norm = cls(80, eps=1e-5).to(dtype)
            norm.weight.data.normal_()
            assert _form(norm, norm.weight, _epsilon(norm)) is offset
            x = torch.randn(2, 3, 80, dtype=dtype)
            # In the interpreter bfloat16 is rounded by cutting off, so equality is to one unit there.
            bound = 1e-6 if dtype == torch.float32 else 2**-6
            torch.testing.assert_close(rms_norm(x, norm.weight, 1e-5, offset), norm(x), atol=0, rtol=bound)
    assert _epsilon(torch.nn.LayerNorm(8)) is None


def rotations() -> None:
    from transformers.models.glm import modeling_glm
    from transformers.models.llama import modeling_llama
    from transformers.models.qwen3_5 import modeling_qwen3_5

    from seewhen.decoding.kernels import rotary_kernel

    whole, part = torch.randn(2, 2, 1, 16), torch.randn(2, 2, 1, 8)
    for file, angles in ((modeling_llama, whole), (modeling_qwen3_5, whole), (modeling_qwen3_5, part)):
        stock = file.apply_rotary_pos_emb
        assert rotary_kernel._agrees(stock)
        # As attention hands them over: heads and positions swapped.
        q, k = (torch.randn(2, 1, heads, 16).transpose(1, 2) for heads in (4, 2))
        for cos, sin in (angles, angles[:, :1]):
            assert rotary_kernel.takes(q, k, cos, sin)
            for ours, theirs in zip(rotary_kernel.rotate(q, k, cos, sin), stock(q, k, cos, sin), strict=True):
                assert torch.equal(ours, theirs)
    assert not rotary_kernel._agrees(modeling_glm.apply_rotary_pos_emb)  # it turns neighbours, not halves
    decoder, stock = tiny.model("llava").model.language_model, modeling_llama.apply_rotary_pos_emb
    with rotary_kernel.turning(decoder):
        ours = modeling_llama.apply_rotary_pos_emb
        with rotary_kernel.turning(decoder):
            assert modeling_llama.apply_rotary_pos_emb is ours is not stock
        assert modeling_llama.apply_rotary_pos_emb is ours
    assert modeling_llama.apply_rotary_pos_emb is stock


def feed_forwards() -> None:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.fast.modules import _feed_forwards, swapped

    for family, count in (("llava", 4), ("gemma3", 0)):  # Gemma's activation is another one
        backbone = Backbone.of(tiny.model(family))
        assert len(list(_feed_forwards(backbone))) == count
        layer = backbone.layers[0].mlp
        for rows in (1, 3, 16, 17):
            x = torch.randn(rows, 1, layer.gate_proj.in_features)
            expected = layer(x)
            with swapped(backbone):
                torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=0)
            assert torch.equal(layer(x), expected)


def caches() -> None:
    from transformers import LlamaConfig, StaticCache

    from seewhen.decoding.kernels.cache_kernel import RowWriter

    config = LlamaConfig(num_hidden_layers=2, hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    stock, ours = (StaticCache(config=config, max_cache_len=16) for _ in range(2))
    writer = RowWriter(ours)
    for tokens in (5, 1, 1):
        for layer in range(2):
            # As attention hands them over: heads and positions swapped.
            key, value = (torch.randn(3, tokens, 2, 8).transpose(1, 2) for _ in range(2))
            for cache in (stock, ours):
                cache.update(key, value, layer)
        if tokens == 1:
            writer.advance()
    for a, b in zip(stock.layers, ours.layers, strict=True):
        assert torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values)
        assert int(a.cumulative_length) == int(b.cumulative_length) == 7


def memory() -> None:
    """Captured steps and their caches go when the method is detached, without the garbage collector."""
    import gc
    import weakref

    from seewhen.asking.attach import Attachment

    model, inputs = tiny.model("llava"), tiny.inputs("llava", rows=1)
    gc.collect()
    gc.disable()
    attachment = Attachment.of(model, "cai", fast="graph")
    with attachment.placed():
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
    (step,) = attachment.loop.kept.all
    held = [weakref.ref(thing) for thing in (step, step.cache, step.cache.layers[0], step.sequence)]
    del attachment, step
    assert [thing() for thing in held] == [None] * 4


def same_in_both_loops(family: str, name: str, **changes: Any) -> None:
    """Tokens, gates and logits of the captured loop, with all kernels, are those of transformers' own."""
    # Heads of sixteen, so that the attention kernel takes them too.
    model = tiny.model(family, head_dim=16) if family == "llava" else tiny.model(family)
    inputs = tiny.inputs(family, rows=2, text_lengths=(4, 5))
    results = []
    for fast in ("off", "graph"):
        with seewhen.attach(model, seewhen.method(name, **changes), fast=fast) as handle:
            output = model.generate(
                **inputs, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True
            )
            results.append((output, handle.trace.tensors.get("gate")))
    (stock, gates_off), (ours, gates) = results
    assert torch.equal(stock.sequences, ours.sequences), (family, name)
    assert gates_off is None or torch.equal(gates_off, gates), (family, name)
    for a, b in zip(stock.logits, ours.logits, strict=True):
        removed = torch.isneginf(a)
        torch.testing.assert_close(a.masked_fill(removed, 0), b.masked_fill(removed, 0), atol=1e-3, rtol=0)


def loops() -> None:
    same_in_both_loops("llava", "cai", threshold=-1.0, contrast=3.0)
    same_in_both_loops("qwen3_5", "cai")
    same_in_both_loops("qwen2_5_vl", "pai")


def capped() -> None:
    """Scores with a cap, which neither SDPA nor our kernel knows, are left to the loop that does."""
    model = tiny.model(tiny.CAPPED, head_dim=16)
    backbone, method = seewhen.Backbone.of(model), seewhen.method("regular")
    if backbone.decoder._supports_sdpa:  # older releases of transformers take it, and leave the cap out themselves
        return
    try:
        resolve("graph", backbone, method)
    except seewhen.errors.UnsupportedMode as error:
        assert "Gemma2Model" in str(error)
    else:
        raise AssertionError("it was taken")
    assert resolve("auto", backbone, method) is None


def forks() -> None:
    """Gates that are decided at the end of a step decide as gates in their place do."""
    from seewhen.decoding import fork

    left, stock = [], fork.Fork.decided
    fork.Fork.decided = lambda self, *args: left.append(self.forked.layers) or stock(self, *args)
    model = tiny.model("llava", head_dim=16, num_hidden_layers=5)
    for rows, contrast, at_the_end in ((1, 1.0, (1, 2, 3, 4)), (2, 3.0, (2, 3, 4))):
        inputs = tiny.inputs("llava", rows=rows, text_lengths=(4, 5)[:rows])
        results = []
        for fast in ("off", "graph"):
            torch.manual_seed(0)
            with seewhen.attach(
                model, seewhen.method("cai", start_layer=0, contrast=contrast), fast=fast
            ) as handle:
                output = model.generate(**inputs, max_new_tokens=5, eos_token_id=None, pad_token_id=0)
                results.append((output, handle.trace))
        assert set(left) == {at_the_end} and len(left) == 4, left
        left.clear()
        (tokens, trace), (other_tokens, other) = results
        assert torch.equal(tokens, other_tokens)
        assert torch.equal(trace.gate, other.gate) and 0 < trace.gate[..., 1:].float().mean() < 1
        torch.testing.assert_close(trace.entropy, other.entropy, atol=1e-4, rtol=0, equal_nan=True)
        torch.testing.assert_close(trace.threshold, other.threshold, atol=1e-4, rtol=0, equal_nan=True)
    fork.Fork.decided = stock


def ends() -> None:
    """One reading of the head for paths and gates' states; then what belongs to the path taken."""
    from seewhen.decoding.kernels import fork_kernel

    head = 0.3 * torch.randn(300, 96)
    for rows, states in ((2, 1), (8, 7), (16, 15), (32, 24)):
        x, h = torch.randn(rows, 96), torch.randn(states, 96)
        logits, parts = fork_kernel.logits_and_parts(x, (h[:1], h[1:]), head)
        torch.testing.assert_close(logits, x @ head.T, atol=5e-5, rtol=0)
        m, s, t = parts
        top = m.max(1, keepdim=True).values
        scale = (m - top).exp()
        total = (s * scale).sum(1)
        found = total.log() - ((t + (m - top) * s) * scale).sum(1) / total
        torch.testing.assert_close(found, when.entropy(h @ head.T), atol=1e-5, rtol=0)
    # Two main rows, two branch rows, then the main rows on the paths 1, 2, 3.
    given = torch.arange(10.0)[:, None].expand(-1, 5).contiguous()
    taken = fork_kernel.take(given, torch.tensor([3, 1], dtype=torch.int32), 4)
    assert taken[:, 0].tolist() == [8.0, 5.0, 2.0, 3.0]


def lanes() -> None:
    """Rows of different lengths, written and attended by the kernels."""
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.fast.lane import Seat
    from seewhen.decoding.fast.lanes import Lanes
    from seewhen.decoding.fast.slots import Choice

    model = tiny.model("llava", head_dim=16)
    method = seewhen.method("cai", threshold=-1.0, contrast=3.0)
    prompts = [tiny.inputs("llava", text_lengths=(words,), seed=words) for words in (4, 6)]
    expected = []
    with seewhen.attach(model, method, fast="off"):
        for inputs in prompts:
            output = model.generate(**inputs, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
            expected.append(output[0, -4:].tolist())
    both = Lanes(model, Backbone.of(model), slots=2, fast="graph")
    got: dict[Seat, list[int]] = {}
    for inputs in prompts:  # the second comes one step later
        seat = Seat(Choice(), 4, 0)
        got[seat] = []
        lane = both.join(method, inputs, 64, [[seat]])
        for token in list(both.advance(lane)):
            got[token.seat].append(token.id)
    while both.busy:
        for token in list(both.advance(lane)):
            got[token.seat].append(token.id)
        for seat in [seat for seat, tokens in got.items() if len(tokens) == 4]:
            lane.leave(seat)
    both.clear()
    assert list(got.values()) == expected


def far_rows() -> None:
    """Rows of a cache so far apart that the last begins behind 2^31 numbers; nobody touches what is between."""
    rows, key_heads, columns, d = 3, 2, 70, 16
    apart = 2**30
    memory = torch.empty((rows - 1) * apart + key_heads * columns * d, dtype=torch.float16)
    key = memory.as_strided((rows, key_heads, columns, d), (apart, columns * d, d, 1))
    key.copy_(torch.randn(key.shape))
    query = torch.randn(rows, key_heads, 1, d).to(torch.float16)
    got, _ = attention_kernel.attention(query, key, key, None, d**-0.5)
    near = key.contiguous()
    expected, _ = attention_kernel.attention(query, near, near, None, d**-0.5)
    assert torch.equal(got, expected)


def compare(parts: Mapping[str, Any]) -> None:
    """The parts that the command line names."""
    for part in sys.argv[1:]:
        torch.manual_seed(0)
        parts[part]()
        print(part, "equal", flush=True)


if __name__ == "__main__":
    compare(globals())
