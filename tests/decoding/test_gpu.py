"""The core's identities on a GPU, in bfloat16 and through CUDA graphs. Skipped where there is no CUDA device.

Also runs without pytest: `python tests/decoding/test_gpu.py` on a machine that has no test tools.
"""

from __future__ import annotations

import copy
import sys
import time
import warnings
from pathlib import Path

import torch
from torch._dynamo.utils import counters

sys.path.insert(0, str(Path(__file__).parents[1]))

import seewhen
import tiny

try:
    import pytest

    pytestmark = [
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ]
except ImportError:
    pytestmark = []

# Convolutions of the vision towers would otherwise run in TF32.
torch.backends.cudnn.allow_tf32 = False

FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "internvl", "gemma3")
# Compiling takes most of the time: one kind of positions, of cache and of gate each.
OPEN = {"threshold": -1.0, "contrast": 3.0}
COMPILED = (("llava", OPEN), ("qwen2_5_vl", OPEN), ("gemma3", {}), ("llava", {}))


def on_gpu(family, dtype, rows=1):
    model = copy.deepcopy(tiny.model(family)).to("cuda", dtype)
    inputs = tiny.inputs(family, rows=rows, text_lengths=tuple(range(4, 4 + rows)))
    moved = {}
    for name, value in inputs.items():
        value = value.to("cuda")
        moved[name] = value.to(dtype) if value.is_floating_point() else value
    return model, moved


def generate(model, inputs, **options):
    options = {"max_new_tokens": 6, "do_sample": False, **options}
    return model.generate(**inputs, return_dict_in_generate=True, output_logits=True, **options)


def same(a, b):
    return torch.equal(a.sequences, b.sequences) and all(
        torch.equal(x, y) for x, y in zip(a.logits, b.logits, strict=True)
    )


def test_closed_gate_and_zero_tilt_are_stock_bit_for_bit():
    for family in FAMILIES:
        for dtype in (torch.bfloat16, torch.float32):
            model, inputs = on_gpu(family, dtype, rows=2)
            stock = generate(model, inputs)
            for changes in ({"threshold": 1e9}, {"threshold": -1.0, "strength": 0.0}):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    with seewhen.attach(model, seewhen.method("cai", **changes), fast="off"):
                        assert same(generate(model, inputs), stock), (family, dtype, changes)


def test_cpu_and_gpu_agree():
    method = seewhen.method("cai", threshold=-1.0, contrast=3.0)
    for family in FAMILIES:
        tokens = torch.tensor([5, 9, 33, 71])
        model, inputs = on_gpu(family, torch.float32)
        here = seewhen.replay(tiny.model(family), tiny.inputs(family, text_lengths=(4,)), tokens, method)
        there = seewhen.replay(model, inputs, tokens, method)
        torch.testing.assert_close(here.logits, there.logits, atol=2e-3, rtol=0)
        torch.testing.assert_close(here.relevance, there.relevance, atol=2e-3, rtol=0)


def test_bfloat16_follows_float32():
    method = seewhen.method("cai", threshold=-1.0, contrast=3.0)
    tokens = torch.tensor([5, 9, 33, 71])
    model, inputs = on_gpu("llava", torch.float32)
    exact = seewhen.replay(model, inputs, tokens, method).logits
    model, inputs = on_gpu("llava", torch.bfloat16)
    rounded = seewhen.replay(model, inputs, tokens, method).logits
    relative = (exact - rounded).abs().mean() / exact.abs().mean()
    assert relative < 0.05, relative


def test_static_cache_with_cuda_graphs_equals_eager():
    found = {f"{family} {options}": compiled_differences(family, options) for family, options in COMPILED}
    assert not any(found.values()), found


def compiled_differences(family, options):
    """What compiled decoding does otherwise than eager decoding; empty where all is well."""
    method = seewhen.method("cai", **options)
    model, inputs = on_gpu(family, torch.float32, rows=2)
    with seewhen.attach(model, method, fast="off") as handle:
        eager, gates = generate(model, inputs), handle.trace.gate
    torch._dynamo.reset()
    found = []
    with seewhen.attach(model, method, fast="off") as handle:  # transformers compiles with reduce-overhead
        # The second generation has a fresh cache; what was compiled for the first must serve it too.
        for turn in ("first", "second"):
            counters.clear()
            start = time.perf_counter()
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                static = generate(model, inputs, cache_implementation="static")
            took = time.perf_counter() - start
            launches = sum(e.count for e in profile.key_averages() if e.key == "cudaGraphLaunch")
            compiled, skips = counters["stats"]["unique_graphs"], counters["inductor"]["cudagraph_skips"]
            print(f"{family} {options} {turn}: {took:.1f} s, {compiled} compiled, {launches} CUDA graph launches")
            different = max(float((a - b).abs().max()) for a, b in zip(eager.logits, static.logits, strict=True))
            facts = {
                "gates differ": not torch.equal(handle.trace.gate, gates),
                "tokens differ": not torch.equal(eager.sequences, static.sequences),
                f"logits differ by {different:.1e}": different > 5e-3,
                f"CUDA graphs skipped {skips} times": skips > 0,
                "no CUDA graph launched": launches == 0,
                f"{compiled} graphs compiled again": turn == "second" and compiled > 0,
            }
            found += [f"{turn}: {fact}" for fact, holds in facts.items() if holds]
    print(f"{family} {options}:", found or "equal", flush=True)
    return found


def run_checks(names):
    """Run the tests among `names` without pytest; the number that failed."""
    failures = 0
    for name, check in list(names.items()):
        if name.startswith("test_"):
            start = time.perf_counter()
            try:
                check()
                print("passed", name, f"{time.perf_counter() - start:.1f} s", flush=True)
            except Exception as error:
                failures += 1
                print("FAILED", name, type(error).__name__, str(error)[:3000], flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(bool(run_checks(globals())))
