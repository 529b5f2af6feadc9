"""The fast path on a GPU: captured and compiled steps and our kernels against transformers' own loop.

Also runs without pytest: `python tests/decoding/fast/test_fast_gpu.py`.
"""

from __future__ import annotations

import gc
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import seewhen
from decoding.test_gpu import on_gpu, pytestmark, run_checks  # noqa: F401  (the mark holds for this file too)
from seewhen.decoding.kernels.capturing import captured_graph
from seewhen.equations import when

FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "internvl", "qwen3_5", "instructblip", "gemma3")
METHODS = {
    "regular": seewhen.method("regular"),
    "cai": seewhen.method("cai"),
    "cai+contrast": seewhen.method("cai", threshold=-1.0, contrast=3.0),
    "pai": seewhen.method("pai"),
    "vcd": seewhen.method("vcd"),
}


def generate(model, inputs, method, fast, times=1, **options):
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **options}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with seewhen.attach(model, method, fast=fast) as handle:
            for _ in range(times):
                torch.manual_seed(5)
                output = model.generate(**inputs, return_dict_in_generate=True, output_logits=True, **options)
            return output, handle.trace


def distance(a, b):
    """The largest difference; infinite where one has removed a token and the other has not."""
    removed = torch.isneginf(a)
    if not torch.equal(removed, torch.isneginf(b)):
        return torch.inf
    return float((a - b).masked_fill(removed, 0.0).abs().max())


def differences(family, method, fast, dtype=torch.float32, times=1, tolerance=2e-3, **options):
    """What the fast path does otherwise; empty where all is well."""
    model, inputs = on_gpu(family, dtype, rows=2)
    stock, trace = generate(model, inputs, method, "off", **options)
    quick, fast_trace = generate(model, inputs, method, fast, times, **options)
    found = []
    if not torch.equal(stock.sequences, quick.sequences):
        found.append("tokens")
    furthest = max(distance(a, b) for a, b in zip(stock.logits, quick.logits, strict=True))
    if furthest > tolerance:
        found.append(f"logits by {furthest:.1e}")
    if "gate" in trace.tensors and not torch.equal(trace.gate, fast_trace.gate):
        found.append("gates")
    return found


def test_captured_steps_equal_stock():
    found = {}
    for family in FAMILIES:
        for name, method in METHODS.items():
            found[family, name] = differences(family, method, "graph")
    assert not any(found.values()), {k: v for k, v in found.items() if v}


def test_a_step_used_again_equals_stock():
    found = {family: differences(family, METHODS["cai+contrast"], "graph", times=3) for family in FAMILIES}
    assert not any(found.values()), found


def test_prompts_read_by_a_captured_pass_equal_stock():
    """Other words and pixels than the pass was captured with."""
    found = {}
    for family in FAMILIES:
        for name in METHODS if family == "llava" else ("regular", "cai+contrast"):
            model, first = on_gpu(family, torch.float32, rows=2)
            second = {name: 0.5 * v if v.is_floating_point() else v for name, v in first.items()}
            second["input_ids"] = torch.where((first["input_ids"] > 2) & (first["input_ids"] < 120), 7, 0)
            second["input_ids"] = torch.where(second["input_ids"] == 7, 7, first["input_ids"])
            expected, _ = generate(model, second, METHODS[name], "off")
            with seewhen.attach(model, METHODS[name], fast="graph"):
                for inputs in (first, first, first, second):
                    output = model.generate(
                        **inputs, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
                    )
            found[family, name] = not torch.equal(output, expected.sequences)
    assert not any(found.values()), {k: v for k, v in found.items() if v}


def test_llava_s_prompt_and_tower_are_captured():
    from seewhen.asking.attach import Attachment

    model, inputs = on_gpu("llava", torch.bfloat16, rows=1)
    for method in ("regular", "cai", "vcd"):
        attachment = Attachment.of(model, METHODS[method], fast="graph")
        for _ in range(3):
            with attachment.placed(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.generate(**inputs, max_new_tokens=4, do_sample=False, eos_token_id=None, pad_token_id=0)
        (step,) = attachment.loop.kept.all
        for passes in (step.prompts, attachment.loop.tower.passes):
            assert passes.kept and None not in passes.kept.values(), method


def test_sampling_draws_the_same_tokens():
    found = {
        name: differences("llava", METHODS[name], "graph", do_sample=True, top_k=20, temperature=0.7)
        for name in ("regular", "cai+contrast")
    }
    assert not any(found.values()), found


def test_closed_gate_equals_regular_bit_for_bit():
    """The third time prompts are replayed too."""
    for family in ("llava", "qwen2_5_vl"):
        model, inputs = on_gpu(family, torch.bfloat16, rows=2)
        regular, _ = generate(model, inputs, "regular", "graph", times=3)
        for changes in ({"threshold": 1e9}, {"threshold": -1.0, "strength": 0.0}):
            closed, _ = generate(model, inputs, seewhen.method("cai", **changes), "graph", times=3)
            assert torch.equal(regular.sequences, closed.sequences)
            for a, b in zip(regular.logits, closed.logits, strict=True):
                assert torch.equal(a, b), (family, changes)


def test_kernels_equal_their_references():
    from seewhen.decoding.kernels import gate_kernel, linear_kernel

    torch.manual_seed(0)
    for rows in (1, 2, 3, 16):
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 6e-3)):
            x = torch.randn(rows, 1, 1280, device="cuda", dtype=dtype)
            weights = tuple(torch.randn(n, 1280, device="cuda", dtype=dtype) for n in (1280, 320, 77))
            biases = tuple(torch.randn(w.shape[0], device="cuda", dtype=dtype) for w in weights)
            for given in ((None,) * 3, biases):
                for got, w, b in zip(linear_kernel.linear(x, weights, given), weights, given, strict=True):
                    exact = torch.nn.functional.linear(x.double(), w.double(), None if b is None else b.double())
                    assert (got - exact).norm() / exact.norm() < bound, (rows, dtype)
            h = torch.randn(rows, 1280, device="cuda", dtype=dtype) / 20
            exact = when.entropy(h.double() @ weights[0].double().T)
            torch.testing.assert_close(gate_kernel.entropy(h, weights[0]), exact.float(), atol=2e-4, rtol=0)


def test_rotations_equal_stock_bit_for_bit():
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    from seewhen.decoding.kernels.rotary_kernel import rotate

    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k = (torch.randn(3, 1, heads, 128, device="cuda", dtype=dtype).transpose(1, 2) for heads in (32, 8))
        cos, sin = (torch.randn(3, 1, 128, device="cuda", dtype=dtype) for _ in range(2))
        for ours, theirs in zip(rotate(q, k, cos, sin), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
            assert torch.equal(ours, theirs), dtype


def test_feed_forward_layers_equal_their_reference():
    from seewhen.decoding.kernels.feed_forward_kernel import gated

    torch.manual_seed(0)
    for rows in (1, 2, 16):
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 8e-3)):
            x = torch.randn(rows, 1, 1280, device="cuda", dtype=dtype)
            gate, up = (torch.randn(777, 1280, device="cuda", dtype=dtype) / 36 for _ in range(2))
            a, b = (torch.nn.functional.linear(x.double(), w.double()) for w in (gate, up))
            exact = torch.nn.functional.silu(a) * b
            assert (gated(x, gate, up) - exact).norm() / exact.norm() < bound, (rows, dtype)


def test_attention_equals_its_reference():
    from seewhen.decoding.kernels.attention_kernel import attention

    torch.manual_seed(0)
    for rows, heads, key_heads, columns, d in ((1, 32, 32, 768, 128), (3, 16, 4, 1500, 256), (2, 4, 2, 70, 16)):
        for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
            query = torch.randn(rows, heads, 1, d, device="cuda", dtype=dtype)
            key, value = (torch.randn(rows, key_heads, columns, d, device="cuda", dtype=dtype) for _ in range(2))
            mask = torch.rand(rows, 1, 1, columns, device="cuda") > 0.3
            mask[..., columns // 2 :] = False  # whole stretches are empty
            weights = torch.rand(rows, columns, device="cuda")
            gate = torch.rand(rows, device="cuda") > 0.3
            for form in ("none", "score", "exponential"):
                got, lse = attention(query, key, value, mask, d**-0.5, weights, gate, form, 0.7)
                wide = [t.double().repeat_interleave(heads // key_heads, 1) for t in (key, value)]
                scores = (query.double() @ wide[0].transpose(2, 3) * d**-0.5)[:, :, 0]
                lift = {"none": 0.0, "score": scores.abs(), "exponential": 1.0}[form]
                scores = scores + 0.7 * lift * weights[:, None] * gate[:, None, None]
                scores = scores.masked_fill(~mask[:, 0], -torch.inf)
                exact = torch.einsum("rhc,rhcd->rhd", scores.softmax(-1), wide[1])
                assert (got[:, 0] - exact).norm() / exact.norm() < bound, (rows, dtype, form)
                torch.testing.assert_close(lse, scores.logsumexp(-1).float(), atol=2e-2, rtol=1e-3)


def test_no_hooks_or_forwards_are_left():
    model, inputs = on_gpu("llava", torch.float32)
    before, _ = generate(model, inputs, "regular", "off")
    try:
        with seewhen.attach(model, "cai", fast="graph"):
            raise RuntimeError("on purpose")
    except RuntimeError:
        pass
    assert not any("forward" in module.__dict__ for module in model.modules())
    after, _ = generate(model, inputs, "regular", "off")
    assert all(torch.equal(a, b) for a, b in zip(before.logits, after.logits, strict=True))


def test_what_cannot_be_captured_runs_uncaptured():
    """A module that waits for the device, as some quantisations and expert layers do."""
    model, inputs = on_gpu("llava", torch.float32, rows=2)
    stock, _ = generate(model, inputs, "cai", "off")
    hook = model.model.language_model.layers[0].register_forward_hook(lambda *_: torch.cuda.synchronize())
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            with seewhen.attach(model, "cai", fast="graph"):
                options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
                tokens = model.generate(**inputs, **options)
    finally:
        hook.remove()
    assert any("cannot be captured" in str(warning.message) for warning in seen)
    assert torch.equal(tokens, stock.sequences)


def test_a_graph_that_nobody_holds_ends_no_capture():
    """Freeing a graph while another is captured would end that capture."""
    x = torch.zeros(8, device="cuda")

    def step():
        for _ in range(50):
            held = [x]
            held.append(held)  # garbage in a circle, enough of it for a collection
            x.add_(1)

    thresholds = gc.get_threshold()
    gc.disable()
    for _ in range(3):
        replay, captured = captured_graph(step)
        assert captured
        circle = [replay]
        circle.append(circle)
    del replay, circle  # graphs that only a collection frees
    gc.set_threshold(1, 1, 1)
    gc.enable()
    try:
        assert captured_graph(step)[1] and gc.isenabled()
    finally:
        gc.set_threshold(*thresholds)


if __name__ == "__main__":
    sys.exit(bool(run_checks(globals())))
