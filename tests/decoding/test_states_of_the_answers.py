"""`output_hidden_states` and `output_attentions` give those of the answers, without the rows of a contrast."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import seewhen
import tiny

WANTED: dict[str, Any] = {
    "max_new_tokens": 3,
    "do_sample": False,
    "eos_token_id": 10**6,
    "pad_token_id": 0,
    "return_dict_in_generate": True,
    "output_hidden_states": True,
    "output_attentions": True,
}
LONGER = seewhen.method("icd", sentence_ids=tuple(range(tiny.FIRST_WORD, tiny.FIRST_WORD + 20)))
# A branch that sees no image, and one with a longer prompt.
METHODS = {
    "m3id": seewhen.method("m3id"),
    "icd": LONGER,
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("family", ["llava", tiny.CAPPED])  # the second has the eager kernel, which tells its maps
def test_they_are_those_of_the_answers(family: str, method: Any) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    stock = model.generate(**inputs, **WANTED)
    with seewhen.attach(model, method):
        output = model.generate(**inputs, **WANTED)
    padding = inputs["attention_mask"] == 0  # what stands there is anything
    for name in ("hidden_states", "attentions"):
        for step, (ours, theirs) in enumerate(zip(output[name], stock[name], strict=True)):
            for mine, its in zip(ours, theirs, strict=True):
                if its is None:  # a kernel that makes no map
                    assert mine is None
                    continue
                assert mine.shape == its.shape
                if not step:  # the prompt, which no contrast changes
                    rows = mine.transpose(1, 2) if name == "attentions" else mine
                    expected = its.transpose(1, 2) if name == "attentions" else its
                    torch.testing.assert_close(rows[~padding], expected[~padding], rtol=1e-4, atol=1e-4)
