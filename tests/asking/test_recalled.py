"""The picture of a call that was not ours, from the pixels that the model was given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import seewhen
import tiny
from seewhen.asking.recalled import recalled
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.pictures import open_image
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.scenes import render, sample


class Numbers:
    """A processor without a file: tokens are their numbers, pixels between -1 and 1."""

    tokenizer = None
    image_processor = SimpleNamespace(image_mean=[0.5] * 3, image_std=[0.5] * 3)

    def __init__(self) -> None:
        self.tokenizer = self

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(f" {int(token)}" for token in ids)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_picture_of_every_family_comes_back(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family)
    with seewhen.attach(model, "regular") as handle:
        model.generate(**inputs, max_new_tokens=2, do_sample=False, pad_token_id=tiny.PAD)
    found = recalled(handle.trace, Backbone.of(model), inputs, Numbers())
    assert found.texts[0] == tuple(f" {token}" for token in handle.trace.tokens[:, 0].tolist())
    (picture,) = (open_image(file) for file in found.pictures)
    if inputs["pixel_values"].dim() == 4 and len(inputs["pixel_values"]) == 1:
        pixels = ((inputs["pixel_values"][0].float() * 0.5 + 0.5).clamp(0, 1) * 255).round().byte()
        assert torch.equal(
            torch.tensor(list(picture.tobytes())).view(*picture.size[::-1], 3), pixels.permute(1, 2, 0)
        )


def test_a_tokenizer_tells_the_question_as_its_processor_does() -> None:
    model, processor = seewhen.load("packaged")
    prompt = chat_prompt(processor, "Is there a dog?", 1)
    inputs = model_inputs(model, processor, [[render(sample("test", 0))]], [prompt])
    with seewhen.attach(model, "regular") as handle:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
    for known in (processor, processor.tokenizer):
        found = recalled(handle.trace, Backbone.of(model), inputs, known)
        assert found.meta["prompts"] == ["Is there a dog?"]
