"""Matrices laid by columns: the same model, to rounding."""

from __future__ import annotations

import torch

import packed
import seewhen
import tiny
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.backbones.wide import lay_wide
from seewhen.scenes import render, sample


def test_wide_layers_are_laid_by_columns_and_give_the_same():
    model, processor = seewhen.load(device="cpu")
    prompt = chat_prompt(processor, "Please describe this image.", images=1)
    inputs = model_inputs(model, processor, [[render(sample("test", 0))]], [prompt])
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    values, rows = head.weight.detach().clone(), table.weight
    with torch.inference_mode():
        before = model(**inputs).logits
        lay_wide(model)
        after = model(**inputs).logits
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)
    assert torch.equal(head.weight, values) and head.weight.t().is_contiguous()
    assert table.weight is rows and rows.is_contiguous(), "tokens are looked up by rows"
    narrow = [m for m in model.modules() if type(m) is torch.nn.Linear and m.out_features < 2 * m.in_features]
    assert narrow and all(module.weight.is_contiguous() for module in narrow)


def test_packed_weights_stay_as_they_are():
    """They say that they are matrices of floats, and cannot be turned."""
    model, whole = packed.pair("llava")
    lay_wide(model)
    assert isinstance(model.get_output_embeddings().weight, packed.Packed)
    inputs = tiny.inputs("llava")
    with torch.inference_mode():
        torch.testing.assert_close(model(**inputs).logits, whole(**inputs).logits)


def test_other_numbers_stay_as_they_are():
    model, _ = seewhen.load(device="cpu", dtype="bfloat16")
    lay_wide(model)
    assert all(each.is_contiguous() for each in model.parameters())
