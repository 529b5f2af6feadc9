"""The context of `attach`: entered and left, and what it says where it is used wrongly."""

from __future__ import annotations

import functools
import gc

import pytest
import torch

import seewhen
import tiny
from seewhen.errors import SeewhenError, UnsupportedMode

ASKED = {
    **tiny.inputs("llava", rows=3, only=0),
    "max_new_tokens": 4,
    "eos_token_id": 10**6,
    "pad_token_id": 0,
    "do_sample": False,
}


def test_without_with_it_says_so():
    model = tiny.model("llava")
    plain = model.generate(**ASKED)
    context = seewhen.attach(model, "cai")
    with pytest.raises(UnsupportedMode, match="nothing happens until it is entered"):
        context.summary()
    with pytest.raises(UnsupportedMode, match="was called but not entered"):
        model.generate(**ASKED)
    with pytest.raises(UnsupportedMode, match="was not entered"):
        context.__exit__(None, None, None)
    with pytest.warns(UserWarning, match="never entered"):
        del context
        gc.collect()
    assert "generate" not in model.__dict__ and torch.equal(model.generate(**ASKED), plain)


def test_contexts_may_be_made_before_they_are_entered():
    model = tiny.model("llava")
    first, second = seewhen.attach(model, "regular"), seewhen.attach(model, "cai")
    with second:
        model.generate(**ASKED)
    with pytest.raises(UnsupportedMode, match="was called but not entered"):
        model.generate(**ASKED)
    with first:
        model.generate(**ASKED)
    assert "generate" not in model.__dict__


def test_a_generate_of_the_callers_own_is_back_afterwards():
    model = tiny.model("llava")
    mine = functools.partial(type(model).generate, model, max_new_tokens=2, do_sample=False)
    model.generate = mine
    try:
        with seewhen.attach(model, "cai"):
            length = tiny.inputs("llava", rows=1)["input_ids"].shape[1]
            assert model.generate(**tiny.inputs("llava", rows=1)).shape[1] == length + 2
        assert model.__dict__["generate"] is mine
    finally:
        del model.generate


def test_a_context_is_entered_once():
    model = tiny.model("llava")
    context = seewhen.attach(model, "cai")
    with context:
        pass
    with pytest.raises(UnsupportedMode, match="entered before"), context:
        pass


@pytest.mark.parametrize("how", ["function", "module", "in place"])
def test_a_compiled_forward_is_refused(how):
    model = tiny.model("llava")
    try:
        if how == "function":
            model.forward = torch.compile(model.forward, backend="eager")
        given = torch.compile(model, backend="eager") if how == "module" else model
        if how == "in place":
            model.model.language_model.layers[1].compile(backend="eager")
        with pytest.raises(SeewhenError, match="is compiled"):
            seewhen.attach(given, "cai")
    finally:
        model.__dict__.pop("forward", None)
        model.model.language_model.layers[1]._compiled_call_impl = None


def test_mistakes_show_where_they_are_made():
    model = tiny.model("llava")
    with pytest.raises(seewhen.errors.InvalidMethod):
        seewhen.attach(model, "nosuch")  # not entered
    with pytest.raises(seewhen.errors.InvalidMethod, match="is no method"):
        seewhen.attach(model, seewhen.CAI)  # the class, without ()
    with pytest.raises(seewhen.errors.UnsupportedModel):
        seewhen.attach("not a model", "cai")
