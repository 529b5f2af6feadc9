"""Prompts read by a captured pass: the same tokens, logits and traces as transformers' own loop gives."""

from __future__ import annotations

import pytest
import torch

import seewhen
import tiny
from seewhen.asking.attach import Attachment
from seewhen.decoding.fast.prompts import Passes

METHODS = ("pai", "vcd", "m3id", "sid", "only", "dola", "farsight", "locore", "memvr", "agla")
OPTIONS = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True, "output_logits": True}


def prompts(family, layout=0):
    """Three of one form: other words, other pixels, and rows whose padding is elsewhere."""
    first = tiny.inputs(family, rows=2, text_lengths=(4, 6), seed=layout)
    generator = torch.Generator().manual_seed(1)
    pixels = next(name for name in ("pixel_values", "pixel_values_images") if name in first)
    ids, end = first["input_ids"], tiny.FIRST_WORD + tiny.WORDS
    words = torch.randint(tiny.FIRST_WORD, end, ids.shape, generator=generator)
    is_word = (ids >= tiny.FIRST_WORD) & (ids < end)
    second = {
        **first,
        "input_ids": torch.where(is_word, words, ids),
        pixels: torch.randn(first[pixels].shape, generator=generator),
    }
    third = tiny.inputs(family, rows=2, text_lengths=(6, 4), seed=layout)
    alike = all(third[name].shape == value.shape for name, value in first.items())
    return [first, second, third if alike else first, first]


def differences(family, method, given):
    """Call after call against transformers' loop; and the attachment that decoded."""
    model = tiny.model(family)
    attachment = Attachment.of(model, method, fast="graph")
    for inputs in given:
        with seewhen.attach(model, method, fast="off") as handle:
            expected = model.generate(**inputs, **OPTIONS)
            trace = handle.trace
        with attachment.placed() as handle:
            output = model.generate(**inputs, **OPTIONS)
            assert torch.equal(output.sequences, expected.sequences)
            for a, b in zip(output.logits, expected.logits, strict=True):
                edge = torch.isinf(a) != torch.isinf(b)  # a token at the edge of the cut: rounding decides
                assert int(edge.sum()) <= 1
                torch.testing.assert_close(a[~edge], b[~edge], atol=1e-4, rtol=0)
            if "gate" in trace.tensors:
                assert torch.equal(handle.trace.gate, trace.gate)
    return attachment


def readings(attachment):
    return [reading for step in attachment.loop.kept.all for reading in step.prompts.kept.values()]


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_prompts_of_one_form_are_read_by_one_pass(family):
    attachment = differences(family, seewhen.method("cai", contrast=3.0, threshold=-1.0), prompts(family))
    if family == "gemma3":  # its window is shorter than the cache: transformers' own loop decodes
        assert not attachment.loop.kept.all
    else:
        assert len(readings(attachment)) == 1 and readings(attachment)[0] is not None
    assert "forward" not in vars(attachment.session.backbone.decoder)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_keeps_from_the_prompt_is_the_new_prompt_s(name):
    attachment = differences("llava", seewhen.method(name), prompts("llava"))
    assert len(readings(attachment)) == 1


def test_two_forms_in_turns():
    """The same number of columns, so that both end in one cache and one step."""
    longer = [tiny.inputs("llava", rows=2, text_lengths=lengths) for lengths in ((9, 6), (5, 9))]
    mixed = [prompt for pair in zip(prompts("llava")[:2], longer, strict=True) for prompt in pair]
    attachment = differences("llava", seewhen.method("cai", contrast=3.0), [*mixed, *mixed])
    assert len(readings(attachment)) == 2


def test_the_prompt_given_is_left_as_it_was():
    model, given = tiny.model("llava"), prompts("llava")[:3]
    copies = [{name: value.clone() for name, value in inputs.items()} for inputs in given]
    with seewhen.attach(model, "cai", fast="graph"):
        for inputs in [*given, *given]:
            model.generate(**inputs, max_new_tokens=3, do_sample=False)
    for inputs, copied in zip(given, copies, strict=True):
        assert all(torch.equal(value, copied[name]) for name, value in inputs.items())


def test_a_trace_outlives_the_next_prompt():
    model, (first, second, *_) = tiny.model("llava"), prompts("llava")
    with seewhen.attach(model, "cai:threshold=-1", fast="graph") as handle:
        for inputs in (first, second):
            model.generate(**inputs, max_new_tokens=4, do_sample=False)
        kept = handle.trace
        entropy = kept.entropy.clone()
        for tokens in (1, 4):  # one token alone is decoded without a step
            model.generate(**first, max_new_tokens=tokens, do_sample=False)
            single = handle.trace
        assert torch.equal(kept.entropy.nan_to_num(), entropy.nan_to_num())
        assert not torch.equal(single.entropy.nan_to_num(), entropy.nan_to_num())


def test_one_token_does_not_throw_the_captured_step_away():
    model, (first, *_) = tiny.model("llava"), prompts("llava")
    attachment = Attachment.of(model, "cai", fast="graph")
    for tokens in (5, 1, 1):
        with attachment.placed():
            model.generate(**first, max_new_tokens=tokens, do_sample=False)
    assert len(attachment.loop.kept.all) == 1 and len(readings(attachment)) == 1


def test_a_judge_sees_the_prompt_that_was_replayed():
    model = tiny.model("llava")
    given = prompts("llava")
    method = seewhen.method("saliency")
    for inputs in given:
        drawn = []
        for fast in ("off", "auto"):
            with seewhen.attach(model, method, fast=fast):
                torch.manual_seed(0)
                drawn.append(model.generate(**inputs, max_new_tokens=4, do_sample=True, top_k=0))
        assert torch.equal(*drawn)


def test_rare_forms_do_not_push_out_common_ones():
    passes, made = Passes(), []

    def ask(known):
        return passes.of(known, lambda pool: made.append(known) or known)

    for _ in range(3):
        assert [ask(n) for n in range(8)][-1] in (None, 7)
    for strange in range(100, 140):
        assert ask(strange) is ask(strange) is None
    assert made == list(range(8)) and all(ask(n) == n for n in range(8))
    for _ in range(9):
        ask(100)
    assert made[-1] == 100 and len(passes.kept) == 8
