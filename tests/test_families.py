"""The same promises on every model family: off means stock, and everything else is what one row alone would do."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    LogitsProcessor,
    LogitsProcessorList,
)

import seewhen
import tiny
from seewhen.errors import UnsupportedModel

STEPS = 5
NEVER = seewhen.method("cai", start_layer=0, threshold=1e9)
ALWAYS = seewhen.method("cai", preset="reference", start_layer=0, threshold=-1.0)
CONTRAST = ALWAYS.replace(contrast=3.0)

families = pytest.mark.parametrize("family", (*tiny.FAMILIES, tiny.CAPPED))


def generate(model: Any, inputs: dict[str, Any], **options: Any) -> Any:
    options = {"max_new_tokens": STEPS, "do_sample": False, **options}
    return model.generate(
        **inputs, **options, return_dict_in_generate=True, output_logits=True, output_scores=True
    )


def new_tokens(output: Any) -> Tensor:
    return output.sequences[:, -len(output.logits) :]


def logits_of(output: Any) -> Tensor:
    """(rows, steps, vocabulary)"""
    return torch.stack(output.logits, dim=1)


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> None:
    assert torch.equal(torch.isneginf(a), torch.isneginf(b))
    torch.testing.assert_close(a, b, atol=tolerance, rtol=1e-4)


class Forced(LogitsProcessor):
    """Makes a stock `generate` follow given tokens (rows, steps)."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens, self.step = tokens, 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        token = self.tokens[:, self.step, None]
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


class Broken(LogitsProcessor):
    """Raises at the third token."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 3:
            raise RuntimeError("broken on purpose")
        return scores


# -- facts -------------------------------------------------------------------------------------------------


@families
def test_backbone_reads_the_facts(family: str) -> None:
    model = tiny.model(family)
    backbone = seewhen.Backbone.of(model)
    assert backbone.num_layers == 4
    expected = (1, 3) if family in ("qwen3_5", "gemma3", tiny.CAPPED) else (0, 1, 2, 3)
    assert backbone.softmax_layers == expected
    assert backbone.image_token_ids[0] == tiny.IMAGE
    assert backbone.head.weight.shape == (tiny.VOCABULARY, 32)
    assert backbone.text_config.num_hidden_layers == 4
    inputs = tiny.inputs(family, rows=2)
    mask = backbone.image_mask(inputs["input_ids"])
    assert torch.equal(mask, inputs["input_ids"] == tiny.IMAGE)


@families
def test_lens_of_the_last_layer_is_the_models_own_logits(family: str) -> None:
    """Final norm, head (and soft cap, if any) are the right ones."""
    model = tiny.model(family)
    backbone = seewhen.Backbone.of(model)
    seen: list[Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.append((output[0] if isinstance(output, tuple) else output)[:, -1])

    handle = backbone.layers[-1].register_forward_hook(keep)
    try:
        output = generate(model, tiny.inputs(family), max_new_tokens=2)
    finally:
        handle.remove()
    close(backbone.lens(seen[0]), output.logits[0], 1e-5)


# -- off means stock ---------------------------------------------------------------------------------------


@families
def test_a_closed_gate_is_stock_bit_for_bit(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    stock = generate(model, inputs)
    with seewhen.attach(model, NEVER), pytest.warns(UserWarning, match="never fired"):
        output = generate(model, inputs)
    assert torch.equal(output.sequences, stock.sequences)
    assert torch.equal(logits_of(output), logits_of(stock))


@families
def test_a_tilt_of_strength_zero_is_stock_bit_for_bit(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    stock = generate(model, inputs)
    with seewhen.attach(model, ALWAYS.replace(strength=0.0)) as handle:
        output = generate(model, inputs)
    assert handle.trace.fired_tokens() == (STEPS, STEPS)
    assert torch.equal(logits_of(output), logits_of(stock))


@families
def test_an_open_gate_changes_the_logits(family: str) -> None:
    """So that the identities above mean something: all softmax layers but the first are tilted."""
    model, inputs = tiny.model(family), tiny.inputs(family)
    stock = generate(model, inputs, max_new_tokens=1)
    with seewhen.attach(model, ALWAYS) as handle:
        output = generate(model, inputs, max_new_tokens=1)
    assert (logits_of(output) - logits_of(stock)).abs().max() > 1e-3
    tilted = [layer for layer in seewhen.Backbone.of(model).softmax_layers if layer > 0]
    assert handle.trace.fired()[0].nonzero().flatten().tolist() == tilted


def state_of(model: Any) -> dict[str, Any]:
    hooks = {}
    for name, module in model.named_modules():
        hooks[name] = (list(module._forward_hooks), list(module._forward_pre_hooks))
    kernels = {name: m.config._attn_implementation for name, m in model.named_modules() if hasattr(m, "config")}
    return {"hooks": hooks, "kernels": kernels, "own": set(model.__dict__), "generate": model.generate}


@families
def test_after_the_context_the_model_is_as_it_was(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family)
    before, stock = state_of(model), generate(model, inputs)
    with seewhen.attach(model, CONTRAST, trace=True):
        generate(model, inputs)
    assert state_of(model) == before
    broken = LogitsProcessorList([Broken()])
    with pytest.raises(RuntimeError, match="on purpose"), seewhen.attach(model, CONTRAST):
        generate(model, inputs, logits_processor=broken)
    assert state_of(model) == before
    again = generate(model, inputs)
    assert torch.equal(logits_of(again), logits_of(stock))


@families
def test_after_an_error_inside_the_context_the_next_call_is_whole(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family)
    with seewhen.attach(model, CONTRAST):
        expected = generate(model, inputs)
        with pytest.raises(RuntimeError, match="on purpose"):
            generate(model, tiny.inputs(family, rows=2), logits_processor=LogitsProcessorList([Broken()]))
        again = generate(model, inputs)
    assert torch.equal(logits_of(again), logits_of(expected))


# -- rows do not know of each other ------------------------------------------------------------------------


@families
def test_a_left_padded_batch_equals_its_rows_alone(family: str) -> None:
    model = tiny.model(family)
    with seewhen.attach(model, CONTRAST):
        batch = generate(model, tiny.inputs(family, rows=3))
        for row in range(3):
            single = generate(model, tiny.inputs(family, rows=3, only=row))
            assert torch.equal(new_tokens(batch)[row], new_tokens(single)[0])
            close(logits_of(batch)[row], logits_of(single)[0])


@families
def test_two_images_in_a_prompt(family: str) -> None:
    if family in tiny.ONE_IMAGE_ONLY:
        pytest.skip("takes one image per prompt")
    model = tiny.model(family)
    with seewhen.attach(model, CONTRAST) as handle:
        batch = generate(model, tiny.inputs(family, rows=2, images=2))
        tokens = handle.trace.image_tokens
        for row in range(2):
            inputs = tiny.inputs(family, rows=2, images=2, only=row)
            assert tokens[row] == int((inputs["input_ids"] == tiny.IMAGE).sum())
            close(logits_of(batch)[row], logits_of(generate(model, inputs))[0])


@families
def test_a_prompt_without_an_image_passes_through(family: str) -> None:
    if family in tiny.ONE_IMAGE_ONLY:
        pytest.skip("cannot run without an image")
    model, inputs = tiny.model(family), tiny.inputs(family, images=0)
    stock = generate(model, inputs)
    for method in (ALWAYS, CONTRAST):
        with seewhen.attach(model, method), pytest.warns(UserWarning, match="No image"):
            output = generate(model, inputs)
        close(logits_of(output), logits_of(stock), 5e-5)


@families
def test_a_batch_may_hold_a_row_without_an_image(family: str) -> None:
    if family in tiny.ONE_IMAGE_ONLY:
        pytest.skip("takes one image per prompt")
    model = tiny.model(family)
    shape: dict[str, Any] = {"rows": 2, "images": (1, 0)}
    stock = generate(model, tiny.inputs(family, **shape, only=1))
    with seewhen.attach(model, CONTRAST) as handle:
        batch = generate(model, tiny.inputs(family, **shape))
        assert handle.trace.fired_tokens() == (STEPS, 0)
        single = generate(model, tiny.inputs(family, **shape, only=0))
    close(logits_of(batch)[0], logits_of(single)[0])
    close(logits_of(batch)[1], logits_of(stock)[0])


@families
def test_a_row_that_ends_early_leaves_the_others_alone(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    with seewhen.attach(model, CONTRAST) as handle:
        expected = generate(model, inputs)
        first, second = new_tokens(expected).tolist()
        end = next(token for token in first if token not in second)
        output = generate(model, inputs, eos_token_id=end)
        assert handle.trace.lengths == (first.index(end) + 1, STEPS)
    close(logits_of(output)[1], logits_of(expected)[1])


@families
def test_forward_alone_gives_the_same_scores(family: str) -> None:
    """Also outside `generate`: a plain call of the model, and a call without an attention mask."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    bare = {name: value for name, value in tiny.inputs(family).items() if name != "attention_mask"}
    with seewhen.attach(model, CONTRAST), torch.no_grad():
        expected = generate(model, inputs)
        close(model(**inputs).logits[:, -1], expected.logits[0])
        close(logits_of(generate(model, bare)), logits_of(generate(model, tiny.inputs(family))))


@families
def test_looking_changes_nothing(family: str) -> None:
    """A full trace has the bits of no trace, and its shapes are those of the images."""
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    with seewhen.attach(model, CONTRAST):
        expected = generate(model, inputs)
    with seewhen.attach(model, CONTRAST, trace=True) as handle:
        output = generate(model, inputs)
    assert torch.equal(logits_of(output), logits_of(expected))
    counts = (inputs["input_ids"] == tiny.IMAGE).sum(dim=1).tolist()
    assert handle.trace.image_tokens == tuple(counts)
    assert handle.trace.relevance.shape == (STEPS, 2, max(counts))
    mass = handle.trace.mass_after[handle.trace.gate]
    assert ((mass > 0) & (mass < 1)).all()


def text_only(family: str, inputs: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """What runs the prompt without its image tokens by itself: the model, or its inner language model."""
    ids = inputs["input_ids"]
    ids = ids[ids != tiny.IMAGE][None]
    prompt = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if family in ("paligemma", tiny.CAPPED):
        prompt["token_type_ids"] = torch.zeros_like(ids)
    model = tiny.model(family)
    return model.language_model if family == "instructblip" else model, prompt


@families
def test_the_text_only_row_is_the_text_only_prompt(family: str) -> None:
    """Contrast without cut is linear in log-probabilities, so the other row can be read off the scores."""
    model = tiny.model(family)
    inputs = tiny.inputs(family, rows=3)
    tokens = torch.randint(3, 120, (3, STEPS), generator=torch.Generator().manual_seed(5))
    replay = seewhen.replay(model, inputs, tokens, CONTRAST.replace(plausibility=None, leak=False))
    main = torch.log_softmax(replay.logits, dim=-1)
    other = (3.0 * main - replay.scores) / 2.0
    for row in range(3):
        runner, prompt = text_only(family, tiny.inputs(family, rows=3, only=row))
        forced = LogitsProcessorList([Forced(tokens[row : row + 1])])
        alone = generate(runner, prompt, logits_processor=forced, eos_token_id=10**6)
        close(other[row, :STEPS], torch.log_softmax(logits_of(alone)[0], dim=-1))


# -- decoding modes ----------------------------------------------------------------------------------------


def require_sound_beams(family: str) -> None:
    """Before 5.18 or so, transformers mixes the tiles of an image when it makes rows for beams."""
    model, inputs = tiny.model(family), tiny.inputs(family)
    output = generate(model, inputs, num_beams=2, max_new_tokens=1)
    alone = torch.log_softmax(generate(model, inputs, max_new_tokens=1).logits[0], dim=-1)
    if abs(float(output.sequences_scores[0] - alone.max())) > 1e-4:
        pytest.skip("this version of transformers gives beams other images than single rows")


@families
def test_beam_scores_are_those_of_a_replay(family: str) -> None:
    """Each beam carries its own state: the best sequence, fed by itself, has the score the search gave it."""
    require_sound_beams(family)
    model = tiny.model(family)
    with seewhen.attach(model, CONTRAST):
        output = generate(model, tiny.inputs(family, rows=2), num_beams=3, length_penalty=1.0)
    for row in range(2):
        tokens = output.sequences[row, -STEPS:]
        alone = seewhen.replay(model, tiny.inputs(family, rows=2, only=row), tokens, CONTRAST)
        scores = torch.log_softmax(alone.scores, dim=-1)[:STEPS].gather(1, tokens[:, None])
        close(output.sequences_scores[row], scores.sum() / STEPS)


@families
def test_beams_with_an_adaptive_gate(family: str) -> None:
    """The adaptive threshold is a history per row, which must follow its beam."""
    require_sound_beams(family)
    model, method = tiny.model(family), seewhen.method("cai", start_layer=0, contrast=1.5)
    with seewhen.attach(model, method):
        output = generate(model, tiny.inputs(family), num_beams=4, length_penalty=0.0)
    tokens = output.sequences[0, -STEPS:]
    alone = seewhen.replay(model, tiny.inputs(family), tokens, method)
    scores = torch.log_softmax(alone.scores, dim=-1)[:STEPS].gather(1, tokens[:, None])
    close(output.sequences_scores[0], scores.sum())


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


# -- what cannot work says so ------------------------------------------------------------------------------


def other_model(kind: str) -> Any:
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4, "vocab_size": 144}
    text = {"vocab_size": 144, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "image_size": 16,
        "patch_size": 4,
    }
    if kind == "llama":
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **text))
    if kind == "t5":
        return AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model("t5", **sizes))
    if kind == "instructblip":
        towers = {
            "vision_config": {**vision, "num_attention_heads": 2},
            "text_config": {"model_type": "t5", **sizes},
        }
        towers["qformer_config"] = {**vision, "num_attention_heads": 2, "vocab_size": 144}
        return AutoModelForImageTextToText.from_config(AutoConfig.for_model(kind, image_token_index=130, **towers))
    assert kind == "mllama"
    vision |= {"attention_heads": 2, "num_global_layers": 1, "max_num_tiles": 1, "vision_output_dim": 32}
    vision |= {"intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]]}
    text |= {"num_key_value_heads": 4, "cross_attention_layers": [1]}
    config = AutoConfig.for_model(kind, vision_config=vision, text_config=text, image_token_index=130)
    return AutoModelForImageTextToText.from_config(config)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("llama", "names no image token"),
        ("t5", "encoder-decoder"),
        ("instructblip", "encoder-decoder"),
        ("mllama", "cross-attention"),
    ],
)
def test_models_that_cannot_be_supported(kind: str, reason: str) -> None:
    model = other_model(kind)
    before = state_of(model)
    with pytest.raises(UnsupportedModel, match=reason), seewhen.attach(model, ALWAYS):
        pass
    assert state_of(model) == before


def test_windows_only_is_not_supported() -> None:
    for family, options in (
        ("mistral3", {"sliding_window": 8}),
        ("qwen2_vl", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}),
    ):
        with pytest.raises(UnsupportedModel, match=r"sliding-window|full softmax"):
            seewhen.Backbone.of(tiny.model(family, **options))


def test_some_windows_leave_the_other_layers() -> None:
    """Qwen with windows in its upper half: methods act in the lower half, and rows stay independent."""
    options = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    model = tiny.model("qwen2_vl", **options)
    assert seewhen.Backbone.of(model).softmax_layers == (0, 1)
    with seewhen.attach(model, CONTRAST) as handle:
        batch = generate(model, tiny.inputs("qwen2_vl", rows=2))
        assert handle.trace.fired()[0].tolist() == [0, STEPS, 0, 0]
        close(logits_of(batch)[0], logits_of(generate(model, tiny.inputs("qwen2_vl", rows=2, only=0)))[0])


def test_layers_that_keep_keywords_from_attention_are_found_out() -> None:
    model = tiny.model("llava")
    layers = seewhen.Backbone.of(model).layers

    def swallow(module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {name: value for name, value in kwargs.items() if name != "seewhen"}

    with seewhen.attach(model, ALWAYS):
        handles = [layer.register_forward_pre_hook(swallow, with_kwargs=True) for layer in layers]
        try:
            with pytest.raises(UnsupportedModel, match="keyword arguments"):
                generate(model, tiny.inputs("llava"))
        finally:
            for handle in handles:
                handle.remove()
