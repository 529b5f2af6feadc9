"""ICD: the disturbed row against the plain model on the longer prompt, and rows of different lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StaticCache

import seewhen
import tiny
from promises import (
    NEEDS_CACHE,
    STEPS,
    branch_logits,
    close,
    generate,
    rounding,
    some_tokens,
    stock_logits,
)
from seewhen.errors import InvalidMethod, UnsupportedMode
from seewhen.methods.icd import ICD

all_families = pytest.mark.parametrize("family", tiny.FAMILIES)
WORDS = (40, 41, 42, 43, 44, 45, 46)
DISTURBED = ICD(sentence_ids=WORDS)
CLOSING = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5", "gemma3"}  # their configurations name a closing marker


def inserted(family: str, inputs: dict[str, Any]) -> dict[str, Any]:
    """The prompt of the second row of a single prompt, as a user would have to write it."""
    ids = inputs["input_ids"]
    at = int((ids[0] == tiny.IMAGE).nonzero().max()) + 1 + (family in CLOSING)
    new = dict(inputs)
    for name, value in (
        ("input_ids", WORDS),
        ("attention_mask", 1),
        ("mm_token_type_ids", 0),
        ("token_type_ids", 0),
    ):
        if name in inputs:
            own = inputs[name]
            middle = torch.tensor([value if isinstance(value, tuple) else [value] * len(WORDS)], dtype=own.dtype)
            new[name] = torch.cat([own[:, :at], middle, own[:, at:]], dim=1)
    return new


@all_families
def test_the_second_row_is_the_plain_model_on_the_longer_prompt(family: str) -> None:
    """A left-padded batch, at every step, against runs of the plain model without any cache."""
    model, tokens = tiny.model(family), some_tokens(2)
    ours = branch_logits(model, tiny.inputs(family, rows=2), tokens, DISTURBED)
    static = branch_logits(model, tiny.inputs(family, rows=2), tokens, DISTURBED, cache_implementation="static")
    close(static, ours, rounding(family))
    for row in range(2):
        prompt = inserted(family, tiny.inputs(family, rows=2, only=row))
        plain = stock_logits(model, prompt, tokens[row : row + 1], use_cache=family in NEEDS_CACHE)
        close(ours[row], plain[0], rounding(family))


@all_families
def test_the_main_row_is_the_plain_model(family: str) -> None:
    """The padding it gets for the longer row changes nothing."""
    model, inputs, tokens = tiny.model(family), tiny.inputs(family, rows=2), some_tokens(2)
    replay = seewhen.replay(model, inputs, tokens, DISTURBED)
    close(replay.logits[:, :STEPS], stock_logits(model, inputs, tokens, use_cache=True), rounding(family))


def test_attention_of_another_method_with_this_contrast() -> None:
    """The tilt finds the image although the main rows moved to the right."""
    pai = seewhen.method("pai:attention")
    model, inputs, tokens = tiny.model("llava"), tiny.inputs("llava", rows=2), some_tokens(2)
    both = seewhen.replay(model, inputs, tokens, pai + DISTURBED)
    close(both.logits, seewhen.replay(model, inputs, tokens, pai).logits)


def test_logits_processors_see_the_prompt_as_it_was() -> None:
    model, inputs, seen = tiny.model("llava"), tiny.inputs("llava"), []

    class Look(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            seen.append(input_ids)
            return scores

    with seewhen.attach(model, DISTURBED) as handle:
        output = generate(model, inputs, logits_processor=LogitsProcessorList([Look()]))
        whole = model(**inputs).logits
    assert torch.equal(seen[0], inputs["input_ids"])
    assert handle.trace.prompt_length == seen[0].shape[1]
    assert torch.equal(output.sequences[:, : seen[0].shape[1]], seen[0])
    assert whole.shape[:2] == inputs["input_ids"].shape
    close(whole[:, :-1], model(**inputs).logits[:, :-1])


def test_a_static_cache_that_is_too_short_is_refused() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    cache = StaticCache(config=model.config.get_text_config(), max_cache_len=inputs["input_ids"].shape[1] + STEPS)
    model.generate(**inputs, past_key_values=cache, max_new_tokens=1)  # allocates it
    cache.reset()
    with seewhen.attach(model, DISTURBED), pytest.raises(UnsupportedMode, match=r"7 more columns.*fresh cache"):
        model.generate(**inputs, past_key_values=cache, max_new_tokens=1)


class Tokenizer:
    """Words to numbers; refuses to add what the sentence must not have."""

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [50 + len(word) for word in text.split()]}


def test_prepare_tokenises_the_sentence() -> None:
    prepared = ICD().prepare(Tokenizer())
    assert prepared.sentence_ids == (53, 53, 51, 58, 56, 59)
    assert DISTURBED.prepare(Tokenizer()) is DISTURBED
    combined = (seewhen.method("pai") + ICD()).prepare(Tokenizer())
    assert combined.methods[1] == prepared
    assert seewhen.method("regular").prepare(Tokenizer()) == seewhen.method("regular")


def test_errors_say_what_to_do() -> None:
    model = tiny.model("llava")
    with pytest.raises(InvalidMethod, match=r"not known.*prepare"), seewhen.attach(model, ICD()):
        pass
    with pytest.raises(InvalidMethod, match="empty"), seewhen.attach(model, ICD(sentence_ids=())):
        pass
    with pytest.raises(InvalidMethod, match="alpha"):
        ICD(alpha=-1.0)


def test_a_list_of_ids_is_kept_as_a_tuple() -> None:
    made = seewhen.method("icd", sentence_ids=[3, 4])
    assert made.parameters()["sentence_ids"] == (3, 4) and seewhen.method_from_json(made.to_json()) == made
