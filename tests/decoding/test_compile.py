"""Static cache and torch.compile(fullgraph=True) give what eager decoding gives, in one graph per step."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import CompileConfig

import seewhen
import tiny
from promises import rounding


def compiled() -> CompileConfig:
    config = CompileConfig(fullgraph=True, mode="default", dynamic=False)
    config.backend = "eager"  # tracing is what can fail; code generation is torch's own
    config._compile_all_devices = True
    return config


# Tracing takes seconds a layer: one family is quick, and all have as many layers as there are kinds of them.
CASES = [
    pytest.param(
        family, {"threshold": -1.0, "contrast": 3.0}, True, marks=() if family == "llava" else pytest.mark.slow
    )
    for family in tiny.FAMILIES
]
CASES += [pytest.param(family, {}, False, marks=pytest.mark.slow) for family in ("llava", "qwen3_5")]


@pytest.mark.parametrize(("family", "options", "trace"), CASES, ids=lambda value: str(value))
def test_compiled_equals_eager(family, options, trace):
    model = tiny.model(family, num_hidden_layers=2)
    inputs = tiny.inputs(family, rows=2, text_lengths=(5, 8))
    method = seewhen.method("cai", **options)
    common = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    with seewhen.attach(model, method, trace=trace) as handle:
        eager = model.generate(**inputs, **common)
        eager_trace = handle.trace
    torch._dynamo.reset()
    counters.clear()
    with seewhen.attach(model, method, trace=trace) as handle:
        static = model.generate(**inputs, **common, cache_implementation="static", compile_config=compiled())
        static_trace = handle.trace
    assert counters["stats"]["unique_graphs"] >= 1 and not counters["graph_break"]
    assert torch.equal(eager.sequences, static.sequences)
    for a, b in zip(eager.logits, static.logits, strict=True):
        torch.testing.assert_close(a, b, atol=rounding(family), rtol=0)
    assert torch.equal(eager_trace.gate, static_trace.gate)
    for name, tensor in eager_trace.tensors.items():
        torch.testing.assert_close(
            static_trace.tensors[name], tensor, atol=rounding(family), rtol=0, equal_nan=True
        )


def test_a_graph_compiled_before_attaching_is_dropped():
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    options = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}
    torch._dynamo.reset()
    stock = model.generate(**inputs, **options, compile_config=compiled())
    method = seewhen.method("cai", start_layer=0, threshold=-1.0)
    with seewhen.attach(model, method) as handle:
        model.generate(**inputs, **options, compile_config=compiled())
        assert handle.trace.fired_tokens() == (4,)
    assert torch.equal(model.generate(**inputs, **options, compile_config=compiled()), stock)
