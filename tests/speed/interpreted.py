"""Our GPU kernels against their references in Triton's interpreter, and the fast loop with all of them.

Run as a program: the interpreter must be chosen before Triton is imported.
"""

from __future__ import annotations

import os
import sys
import warnings

os.environ["TRITON_INTERPRET"] = "1"

import torch

import seewhen
import tiny
from seewhen import when
from seewhen.speed import attention_kernel, gate_kernel, linear_kernel

warnings.simplefilter("ignore")


def linears() -> None:
    for rows in (1, 2, 5, 16):
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


def loops() -> None:
    for family, name, changes in (
        ("llava", "cai", {"threshold": -1.0, "contrast": 3.0}),
        ("qwen3_5", "cai", {}),
        ("qwen2_5_vl", "pai", {}),
    ):
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
        (stock, gates_off), (fast_output, gates_fast) = results
        assert torch.equal(stock.sequences, fast_output.sequences), family
        assert gates_off is None or torch.equal(gates_off, gates_fast), family
        for a, b in zip(stock.logits, fast_output.logits, strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=0)


if __name__ == "__main__":
    torch.manual_seed(0)
    globals()[sys.argv[1]]()
    print("equal")
