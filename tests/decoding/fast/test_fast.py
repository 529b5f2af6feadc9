"""The fast loop against transformers' own: same tokens, logits, stopping, streaming, trace. On any device."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import seewhen
import tiny
from seewhen.decoding.kernels.capturing import garbage_waits

FAMILIES = tiny.FAMILIES


def generate(model, inputs, method, fast, **options):
    options = {"max_new_tokens": 7, "do_sample": False, "output_logits": True, **options}
    with seewhen.attach(model, method, fast=fast) as handle:
        torch.manual_seed(3)
        output = model.generate(**inputs, return_dict_in_generate=True, **options)
        return output, handle.trace


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("contrast", [1.0, 3.0])
def test_equals_stock(family, contrast):
    model = tiny.model(family)
    inputs = tiny.inputs(family, rows=2, text_lengths=(4, 6))
    method = seewhen.method("cai", contrast=contrast)
    stock, trace = generate(model, inputs, method, "off")
    fast, fast_trace = generate(model, inputs, method, "graph")
    assert torch.equal(stock.sequences, fast.sequences)
    for a, b in zip(stock.logits, fast.logits, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)
    assert torch.equal(trace.gate, fast_trace.gate)
    torch.testing.assert_close(trace.entropy, fast_trace.entropy, atol=1e-4, rtol=0, equal_nan=True)


@pytest.mark.parametrize("family", ("llava", "qwen2_5_vl", "qwen3_5", "instructblip"))
@pytest.mark.parametrize("name", ("cai", "vcd", "only", "memvr"))
def test_a_second_prompt_uses_the_first_one_s_step(family, name, monkeypatch):
    model = tiny.model(family)
    try:
        method = seewhen.method(name, contrast=3.0) if name == "cai" else seewhen.method(name)
        with seewhen.attach(model, method):
            pass
    except seewhen.errors.SeewhenError as error:
        pytest.skip(str(error))
    prompts = [tiny.inputs(family, rows=2, text_lengths=lengths) for lengths in ((4, 6), (7, 5))]
    alone = [generate(model, prompt, method, "off") for prompt in prompts]
    from seewhen.decoding.fast.step import StepMaker

    prepared = []
    original = StepMaker._prepared
    monkeypatch.setattr(StepMaker, "_prepared", lambda *a: prepared.append(1) or original(*a))
    with seewhen.attach(model, method, fast="graph") as handle:
        for prompt, (expected, trace) in zip(prompts, alone, strict=True):
            torch.manual_seed(3)
            output = model.generate(**prompt, max_new_tokens=7, do_sample=False)
            assert torch.equal(output, expected.sequences)
            if hasattr(trace, "gate") and trace.gate is not None:
                assert torch.equal(handle.trace.gate, trace.gate)
    assert len(prepared) == (2 if name == "only" else 1)  # ONLY's memory has the length of the prompt


def test_stops_at_end_tokens_and_pads_as_stock_does():
    model = tiny.model("llava")
    inputs = tiny.inputs("llava", rows=3, text_lengths=(4, 6, 5))
    free, _ = generate(model, inputs, "regular", "off", max_new_tokens=12)
    new = free.sequences[:, inputs["input_ids"].shape[1] :]
    ends = [int(new[0, 3]), int(new[1, 6]), int(new[2, 1])]
    stock, _ = generate(model, inputs, "regular", "off", max_new_tokens=12, eos_token_id=ends, pad_token_id=0)
    fast, _ = generate(model, inputs, "regular", "graph", max_new_tokens=12, eos_token_id=ends, pad_token_id=0)
    assert stock.sequences.shape[1] < free.sequences.shape[1]
    assert torch.equal(stock.sequences, fast.sequences)


@pytest.mark.parametrize(
    "options", [{"top_k": 9}, {"top_p": 0.8, "temperature": 0.6}, {"repetition_penalty": 1.4}]
)
def test_sampling_draws_what_stock_draws(options):
    model = tiny.model("llava")
    inputs = tiny.inputs("llava", rows=2, text_lengths=(4, 6))
    method = seewhen.method("cai", contrast=3.0)
    stock, _ = generate(model, inputs, method, "off", do_sample=True, **options)
    fast, _ = generate(model, inputs, method, "graph", do_sample=True, **options)
    assert torch.equal(stock.sequences, fast.sequences)


class Heard:
    def __init__(self):
        self.pieces, self.ended = [], 0

    def put(self, ids):
        self.pieces.append(ids.clone())

    def end(self):
        self.ended += 1


def test_streams_prompt_and_tokens():
    model = tiny.model("llava")
    inputs = tiny.inputs("llava", rows=1, text_lengths=(4,))
    heard = {}
    for fast in ("off", "graph"):
        heard[fast] = Heard()
        with seewhen.attach(model, "cai", fast=fast):
            model.generate(**inputs, max_new_tokens=5, do_sample=False, streamer=heard[fast])
    assert heard["graph"].ended == heard["off"].ended == 1
    assert len(heard["graph"].pieces) == len(heard["off"].pieces)
    for a, b in zip(heard["off"].pieces, heard["graph"].pieces, strict=True):
        assert torch.equal(a.flatten(), b.flatten())


def test_leaves_to_transformers_what_it_does_not_know():
    from transformers import StoppingCriteria, StoppingCriteriaList

    class After(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            return torch.full((input_ids.shape[0],), input_ids.shape[1] >= length + 3)

    model = tiny.model("llava")
    inputs = tiny.inputs("llava", rows=1, text_lengths=(4,))
    length = inputs["input_ids"].shape[1]
    with seewhen.attach(model, "cai", fast="graph"):
        output = model.generate(
            **inputs, max_new_tokens=9, do_sample=False, stopping_criteria=StoppingCriteriaList([After()])
        )
        beams = model.generate(**inputs, max_new_tokens=4, do_sample=False, num_beams=2)
    assert output.shape[1] == length + 3
    with seewhen.attach(model, "cai", fast="off"):
        assert torch.equal(beams, model.generate(**inputs, max_new_tokens=4, do_sample=False, num_beams=2))


def test_a_method_that_cannot_be_captured_says_so():
    model = tiny.model("llava")
    with (
        pytest.raises(seewhen.errors.UnsupportedMode, match="does not apply"),
        seewhen.attach(model, "opera", fast="graph"),
    ):
        pass
    with pytest.raises(seewhen.errors.UnsupportedMode, match="unknown"), seewhen.attach(model, "cai", fast="warp"):
        pass


# The last switches garbage collection off.
PARTS = [
    "linears",
    "gates",
    "decisions",
    "attentions",
    "other_attentions",
    "forked_attentions",
    "far_rows",
    "norms",
    "rotations",
    "feed_forwards",
    "caches",
    "loops",
    "capped",
    "ends",
    "forks",
    "lanes",
    "memory",
]


LAYERS = [
    "recurrences",
    "recurrent_prompts",
    "recurrent_models",
    "relevances",
    "second_looks",
    "methods",
    "packed_weights",
]


@pytest.mark.slow
@pytest.mark.parametrize(("program", "parts"), [("interpreted.py", PARTS), ("interpreted_layers.py", LAYERS)])
def test_kernels_equal_their_references(program, parts):
    pytest.importorskip("triton", reason="the kernels are written in Triton, which is not installed")
    here = Path(__file__).parent
    path = os.pathsep.join([str(here.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, str(here / program), *parts],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "".join(f"{part} equal\n" for part in parts), done.stderr[-3000:]


def test_garbage_waits_for_a_capture():
    """A graph freed while another is captured would end that capture: nothing is collected meanwhile."""
    assert gc.isenabled()
    with pytest.raises(KeyError), garbage_waits(), garbage_waits():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with garbage_waits():
            pass
        assert not gc.isenabled()  # as the caller had it
    finally:
        gc.enable()


@pytest.mark.parametrize(("held", "stages"), [(232_448, 5), (166_912, 3), (101_376, 2), (65_536, 1)])
def test_tiles_fit_into_the_shared_memory_of_smaller_cards(held, stages, monkeypatch):
    kernels = pytest.importorskip("seewhen.decoding.kernels.linear_kernel", reason="Triton is not here")
    monkeypatch.setattr("seewhen.decoding.kernels.shared_memory.shared_memory", lambda device: held)
    block_n, block_k, _, fitting = kernels.tile_shape(8, 4096, 4096, torch.empty(0, dtype=torch.bfloat16))
    assert fitting == stages and stages * (block_n + 16) * block_k * 2 < held
