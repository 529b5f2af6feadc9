"""On every model family, rows do not know of each other: each gets what it would get alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList

import seewhen
import tiny
from every_family import ALWAYS, CONTRAST, families
from promises import STEPS, Forced, close, generate, logits_of, new_tokens


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
