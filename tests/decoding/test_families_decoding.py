"""All decoding modes on every model family: beams, static caches, kernels, sampling, threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import seewhen
import tiny
from every_family import ALWAYS, CONTRAST, families
from promises import close, generate, logits_of, new_tokens, require_sound_beams


@families
@pytest.mark.parametrize("rows", [1, 3])
def test_a_static_cache_equals_a_growing_one(family: str, rows: int) -> None:
    """One row has no padding, and masks that transformers leaves out; steps go past Gemma's window."""
    if family == tiny.CAPPED:
        pytest.skip("transformers itself cannot run it with a static cache")
    model, inputs = tiny.model(family), tiny.inputs(family, rows=rows)
    with seewhen.attach(model, CONTRAST):
        growing = generate(model, inputs, max_new_tokens=10)
        for _ in range(2):
            static = generate(model, inputs, max_new_tokens=10, cache_implementation="static")
            assert torch.equal(new_tokens(growing), new_tokens(static))
            close(logits_of(growing), logits_of(static))


@families
def test_beams_in_a_static_cache(family: str) -> None:
    if family == tiny.CAPPED:
        pytest.skip("transformers itself cannot run it with a static cache")
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    with seewhen.attach(model, CONTRAST):
        growing = generate(model, inputs, num_beams=3)
        static = generate(model, inputs, num_beams=3, cache_implementation="static")
    assert torch.equal(growing.sequences, static.sequences)
    close(growing.sequences_scores, static.sequences_scores)


@families
def test_the_eager_kernel_equals_sdpa(family: str) -> None:
    if family == tiny.CAPPED:
        pytest.skip("has the eager kernel only")
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    decoder = seewhen.Backbone.of(model).decoder
    assert decoder.config._attn_implementation == "sdpa"
    with seewhen.attach(model, CONTRAST):
        expected = generate(model, inputs)
    decoder.set_attn_implementation("eager")
    try:
        stock = generate(model, inputs)
        with seewhen.attach(model, ALWAYS.replace(strength=0.0)):
            unchanged = generate(model, inputs)
        with seewhen.attach(model, CONTRAST):
            output = generate(model, inputs)
            static = generate(model, inputs, cache_implementation="static")
    finally:
        decoder.set_attn_implementation("sdpa")
    assert torch.equal(logits_of(stock), logits_of(unchanged))
    close(logits_of(output), logits_of(expected))
    close(logits_of(static), logits_of(expected))


@families
def test_sampling_repeats_with_its_seed(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    runs = []
    with seewhen.attach(model, CONTRAST):
        for seed in (7, 7):
            torch.manual_seed(seed)
            runs.append(generate(model, inputs, do_sample=True, temperature=1.3))
    assert torch.equal(runs[0].sequences, runs[1].sequences)
    tokens = new_tokens(runs[0])
    # Every sampled token was plausible: the cut acts before the sampler.
    assert torch.isfinite(logits_of(runs[0]).gather(2, tokens[..., None])).all()


@families
def test_two_models_at_once_in_two_threads(family: str) -> None:
    partner = "llava" if family != "llava" else "qwen3_5"
    names = (family, partner)
    alone = {}
    for name in names:
        with seewhen.attach(tiny.model(name), CONTRAST):
            alone[name] = logits_of(generate(tiny.model(name), tiny.inputs(name, rows=2)))
    together: dict[str, list[Tensor]] = {name: [] for name in names}
    barrier = threading.Barrier(2, timeout=60)

    def work(name: str) -> None:
        barrier.wait()
        for _ in range(2):
            together[name].append(logits_of(generate(tiny.model(name), tiny.inputs(name, rows=2))))

    with seewhen.attach(tiny.model(names[0]), CONTRAST), seewhen.attach(tiny.model(names[1]), CONTRAST):
        threads = [threading.Thread(target=work, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in names:
        assert len(together[name]) == 2
        for logits in together[name]:
            close(logits, alone[name], 1e-5)


@families
def test_grouped_query_attention(family: str) -> None:
    """Two key heads for four query heads: the tilt's two implementations agree, and so do batch and rows."""
    model = tiny.model(family, num_key_value_heads=2)
    inputs = tiny.inputs(family, rows=2)
    with seewhen.attach(model, ALWAYS):
        corrected = generate(model, inputs)
    with seewhen.attach(model, ALWAYS.replace(kernel="bias")):
        biased = generate(model, inputs)
        single = generate(model, tiny.inputs(family, rows=2, only=1))
    assert torch.equal(corrected.sequences, biased.sequences)
    close(logits_of(corrected), logits_of(biased))
    close(logits_of(single)[0], logits_of(biased)[1])


@pytest.mark.parametrize("family", ["gemma3", "paligemma"])
def test_token_types_may_be_left_out(family: str) -> None:
    """Then attention over the image is causal, and transformers leaves masks out where it can."""
    model = tiny.model(family)

    def prompt(only: int | None = None) -> dict[str, Any]:
        inputs = tiny.inputs(family, rows=3, only=only)
        del inputs["token_type_ids"]
        return inputs

    with seewhen.attach(model, CONTRAST):
        batch = generate(model, prompt())
        for row in range(3):
            close(logits_of(batch)[row], logits_of(generate(model, prompt(row)))[0])


@families
def test_several_samples_of_one_prompt(family: str) -> None:
    """`num_return_sequences` repeats rows: each has the image of its prompt."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    torch.manual_seed(0)
    with seewhen.attach(model, CONTRAST):
        output = generate(model, inputs, do_sample=True, num_return_sequences=2, max_new_tokens=2)
        single = generate(model, tiny.inputs(family, rows=2, only=1), max_new_tokens=1)
    require_sound_beams(family)
    for row in (2, 3):
        close(output.logits[0][row], single.logits[0][0])
