"""Gates that are decided at the end of a step, on a GPU: against gates that are decided in their place.

Also runs without pytest: `python tests/decoding/fast/test_forks_gpu.py`.
"""

from __future__ import annotations

import copy
import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import seewhen
import tiny
from decoding.test_gpu import pytestmark, run_checks  # noqa: F401  (the mark holds for this file too)
from seewhen.decoding import fork
from seewhen.decoding.fast import forking

# Contrast, rows, and how many gates are left to the end.
CASES = ((1.0, 1, 1), (1.0, 1, 2), (1.0, 1, 4), (1.0, 2, 3), (1.0, 8, 2), (1.0, 16, 1), (3.0, 1, 4), (3.0, 2, 2))


def decoded(dtype, rows, method, gates, times=2, family="llava", **options):
    """Output and trace of the last of some answers, and the layers whose gates were left to the end."""
    given = {"head_dim": 16, "num_hidden_layers": 5} if family == "llava" else {}
    model = copy.deepcopy(tiny.model(family, **given)).to("cuda", dtype)
    inputs = tiny.inputs(family, rows=rows, text_lengths=tuple(range(4, 4 + rows)))
    inputs = {n: v.to("cuda", dtype if v.is_floating_point() else v.dtype) for n, v in inputs.items()}
    options = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, "pad_token_id": 0, **options}
    most, stock, left = forking.MOST_GATES, fork.Fork.decided, set()

    def seen(self, *args):
        left.add(self.forked.layers)
        return stock(self, *args)

    try:
        forking.MOST_GATES, fork.Fork.decided = gates or 0, seen
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with seewhen.attach(model, method, fast="off" if gates is None else "graph") as handle:
                for _ in range(times):
                    torch.manual_seed(5)
                    output = model.generate(**inputs, return_dict_in_generate=True, output_logits=True, **options)
                return output, handle.trace, left
    finally:
        forking.MOST_GATES, fork.Fork.decided = most, stock


def test_decisions_tokens_and_traces_are_those_of_gates_in_their_place():
    for contrast, rows, gates in CASES:
        for options in ({}, {"do_sample": True, "temperature": 0.8}):
            method = seewhen.method("cai", start_layer=0, contrast=contrast)
            places, trace, none = decoded(torch.float32, rows, method, 0, **options)
            ends, other, left = decoded(torch.float32, rows, method, gates, **options)
            case = (contrast, rows, gates, options)
            assert not none and len(next(iter(left))) == gates, (case, left)
            assert torch.equal(places.sequences, ends.sequences), case
            assert torch.equal(trace.gate, other.gate) and 0 < trace.gate.float().mean() < 1, case
            torch.testing.assert_close(trace.entropy, other.entropy, atol=2e-3, rtol=0, equal_nan=True)
            torch.testing.assert_close(trace.threshold, other.threshold, atol=2e-3, rtol=0, equal_nan=True)


def test_they_equal_transformers_loop():
    for family, start in (("llava", 0), ("qwen3_5", 0.85)):
        for rows in (1, 2):
            method = seewhen.method("cai", start_layer=start)
            stock, trace, _ = decoded(torch.float32, rows, method, None, family=family)
            ends, other, left = decoded(torch.float32, rows, method, 3, family=family)
            assert left, family
            assert torch.equal(stock.sequences, ends.sequences), family
            assert torch.equal(trace.gate, other.gate), family


def test_a_closed_gate_equals_regular_to_rounding():
    for rows in (1, 2):
        regular, _, _ = decoded(torch.float32, rows, seewhen.method("regular"), 3)
        for changes in ({"threshold": 1e9}, {"threshold": -1.0, "strength": 0.0}):
            closed, _, left = decoded(torch.float32, rows, seewhen.method("cai", start_layer=0, **changes), 3)
            assert left == {(2, 3, 4)}
            assert torch.equal(regular.sequences, closed.sequences), changes
            for a, b in zip(regular.logits, closed.logits, strict=True):
                torch.testing.assert_close(a, b, atol=2e-3, rtol=0)


def test_logits_and_entropies_of_one_reading():
    from seewhen.decoding.kernels import fork_kernel, gate_kernel, linear_kernel

    torch.manual_seed(0)
    for paths, states, count in ((2, 1, 32064), (16, 15, 32064), (32, 24, 32064), (16, 8, 1000), (2, 1, 248320)):
        head = torch.randn(count, 1280, device="cuda", dtype=torch.bfloat16) / 20
        x, h = (torch.randn(n, 1280, device="cuda", dtype=torch.bfloat16) for n in (paths, states))
        logits, parts = fork_kernel.logits_and_parts(x, (h,), head)
        torch.testing.assert_close(logits, linear_kernel.linear(x, (head,), (None,))[0], atol=2e-2, rtol=2e-2)
        if count > 8192 and states <= 16:  # the gate's own tiles and rows
            torch.testing.assert_close(parts, gate_kernel._parts_of(h, head), atol=1e-2, rtol=1e-3)


if __name__ == "__main__":
    sys.exit(bool(run_checks(globals())))
