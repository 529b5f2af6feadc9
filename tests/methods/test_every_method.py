"""Every method of the registry keeps its parameters through JSON, runs in every mode of decoding or refuses it in
one line, says what it did, and leaves the model as it was, whatever happens."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from matrix import MATRIX, method, tried
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation.streamers import BaseStreamer

import promises
import seewhen
import tiny
from every_family import state_of
from promises import NEVER_A_TOKEN, generate, logits_of
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.method import Method, PartName, part_of
from seewhen.errors import SeewhenError, UnsupportedMode
from seewhen.methods import method_class

each_method = pytest.mark.parametrize("name", MATRIX)


@each_method
def test_settings_travel_through_json(name: str) -> None:
    for made in (tried(name)[1], *(method(name, preset) for preset in (None, *method_class(name).presets))):
        again = seewhen.method_from_json(made.to_json())
        assert again == made and again.fingerprint == made.fingerprint


class Collected(BaseStreamer):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[Tensor] = []

    def put(self, value: Tensor) -> None:
        self.got.append(value.reshape(-1))

    def end(self) -> None:
        """Nothing to flush."""


MODES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True},
    "beams": {"do_sample": False, "num_beams": 2},
    "streaming": {},
    "static cache": {"cache_implementation": "static", "disable_compile": True},
}
# What a method cannot run in, and what the refusal says; OPERA needs beams, SGRS draws.
REFUSED = {
    ("opera", "greedy"): "num_beams=1",
    ("opera", "sampling"): "num_beams=1",
    ("opera", "streaming"): "streamer",
    ("opera", "static cache"): "static cache",
    ("saliency", "greedy"): "do_sample",
    ("saliency", "beams"): "beam search",
    ("confirm", "beams"): "beam search",
    ("confirm", "static cache"): "static cache of 27 columns is too short",
}
USUAL = {"opera": {"num_beams": 2, "do_sample": False}, "saliency": {"do_sample": True}}


@each_method
@pytest.mark.parametrize("mode", MODES)
def test_modes_run_or_are_refused(name: str, mode: str) -> None:
    """A run in the mode repeats itself exactly, and a streamer is given the answer's own tokens."""
    family, made = tried(name)
    model, inputs = tiny.model(family), tiny.inputs(family)
    # transformers makes a static cache as long as the longest before: other tests would give it room for anything.
    model.__dict__.pop("_previous_max_cache_length", None)
    explicit = mode in ("greedy", "sampling", "beams")
    options = {**({} if explicit else USUAL.get(name, {"do_sample": False})), **MODES[mode]}
    options |= {"max_new_tokens": 4, "eos_token_id": NEVER_A_TOKEN, "pad_token_id": tiny.PAD}
    answers = []
    with warnings.catch_warnings(), seewhen.attach(model, made):
        warnings.filterwarnings("ignore", message=".*never fired")
        for _ in range(2):
            torch.manual_seed(3)
            heard = {"streamer": Collected()} if mode == "streaming" else {}
            if (name, mode) in REFUSED:
                with pytest.raises(UnsupportedMode, match=REFUSED[name, mode]):
                    model.generate(**inputs, **options, **heard)
                return
            answers.append(model.generate(**inputs, **options, **heard))
            if heard:
                assert torch.equal(torch.cat(heard["streamer"].got), answers[-1][0])
    assert torch.equal(*answers)
    assert answers[0].shape[1] == inputs["input_ids"].shape[1] + 4


def summary_of(name: str, made: Method, family: str, inputs: dict[str, Any], **attach: Any) -> seewhen.Handle:
    """The handle of a short call in the mode that the method is made for."""
    model = tiny.model(family)
    options = {"max_new_tokens": 4, "eos_token_id": NEVER_A_TOKEN, "pad_token_id": tiny.PAD}
    with warnings.catch_warnings(), seewhen.attach(model, made, **attach) as handle:
        warnings.simplefilter("ignore")  # of a gate that stays closed, of a prompt without an image
        torch.manual_seed(3)
        model.generate(**inputs, **{**USUAL.get(name, {"do_sample": False}), **options})
    return handle


# Those that change what the newest token attends to, or its hidden state; the others only score.
INTERVENE = {"cai", "cai-gla", "pai", "vti", "ict", "farsight", "saliency", "locore", "memvr"}


@each_method
@pytest.mark.parametrize("part", ["attention", "contrast"])
def test_a_part_alone_acts_or_is_refused(name: str, part: PartName) -> None:
    """No part is regular decoding under another name, and none is the whole method."""
    family, made = tried(name)
    model, inputs = tiny.model(family), tiny.inputs(family)
    whole, alone = made.parts(Backbone.of(model)), part_of(made, part)
    scores = bool(whole.branches) or whole.rule is not None
    if not (scores if part == "contrast" else name in INTERVENE):
        with pytest.raises(SeewhenError, match=f"{name} has no {part}"):
            seewhen.attach(model, alone)
        return
    found = generate(model, inputs, alone)
    regular, min_p = (generate(model, inputs, other) for other in (None, "min-p"))
    if name != "min-p":
        assert not torch.equal(torch.stack(found.scores), torch.stack(regular.scores))
        assert not torch.equal(torch.stack(found.scores), torch.stack(min_p.scores))


@pytest.mark.parametrize("spec", ["vcd+cai:contrast=3", "pai+vcd", "sid+dola"])
def test_what_a_refused_combination_suggests_can_be_used(spec: str) -> None:
    with pytest.raises(SeewhenError, match="cannot be combined") as refused:
        seewhen.attach(tiny.model("llava"), spec)
    suggested = re.search(r"as in (\S+)\.$", str(refused.value))
    assert (suggested is None) == (spec == "sid+dola")
    if suggested is not None:
        with seewhen.attach(tiny.model("llava"), suggested[1]):
            pass


@each_method
def test_a_full_trace_can_be_kept(name: str) -> None:
    family, made = tried(name)
    rows = 1 if name == "opera" else 2  # its search keeps the trace of one answer only
    handle = summary_of(name, made, family, tiny.inputs(family, rows=rows), trace=True)
    assert handle.trace.tensors["attention_before"].shape[0] == len(handle.trace.tokens)


@each_method
def test_the_summary_says_what_was_done(name: str) -> None:
    family, made = tried(name)
    handle = summary_of(name, made, family, tiny.inputs(family))
    told = handle.summary().splitlines()
    assert told[0].startswith(f"{name}: ")
    assert not repr(getattr(handle, "trace", handle)).rstrip(")").endswith((":", " "))
    # What was counted, or that nothing was: never silence about it.
    assert len(told) > 2 or name == "regular", told
    if name == "regular":
        assert told[1:] == ["nothing was changed: the model decodes as it is"]
    else:
        assert method_class(name).summary in "\n".join(told)
    if made.parts(Backbone.of(tiny.model(family))).rule is not None:
        assert any(line.startswith("another token became the likeliest at ") for line in told)


@each_method
def test_the_summary_of_a_prompt_without_an_image(name: str) -> None:
    family, made = tried(name)
    inputs = tiny.inputs(family, images=0)
    try:
        told = summary_of(name, made, family, inputs).summary()
    except SeewhenError as error:
        assert "image" in str(error)  # refused, and told why
        return
    assert "stayed closed" not in told
    if made.needs_image and name not in ("regular", "opera"):
        assert told.splitlines()[1:] == ["no image in the prompt: passed through unchanged"]
        model = tiny.model(family)
        if name != "saliency":  # it draws
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with_it = logits_of(generate(model, inputs, made))
            promises.close(with_it, logits_of(generate(model, inputs)), promises.rounding(family))


@pytest.mark.parametrize("name", ["vcd", "pai", "min-p", "dola"])
def test_tokens_whose_likeliest_choice_changed_are_counted(name: str) -> None:
    family, made = tried(name)
    handle = summary_of(name, made, family, tiny.inputs(family, rows=2), trace="replay")
    trace = handle.trace
    other = trace.logits.argmax(dim=-1) != trace.scores.argmax(dim=-1)
    assert torch.equal(trace.changed, other)
    assert f"the likeliest at {int(other.sum())} of {sum(trace.lengths)} tokens" in handle.summary()


class Broken(LogitsProcessor):
    """Fails at the second token."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 1:
            raise RuntimeError("on purpose")
        return scores


@each_method
def test_after_a_failure_the_model_is_as_it_was(name: str) -> None:
    family, made = tried(name)
    model, inputs = tiny.model(family), tiny.inputs(family)
    stock, before = generate(model, inputs), state_of(model)  # transformers' own hooks come with the first call
    usual = {"max_new_tokens": 4, "pad_token_id": tiny.PAD, "do_sample": False, **USUAL.get(name, {})}
    with pytest.raises(RuntimeError, match="on purpose"), seewhen.attach(model, made):
        model.generate(**inputs, **usual, logits_processor=LogitsProcessorList([Broken()]))
    assert state_of(model) == before
    assert torch.equal(logits_of(generate(model, inputs)), logits_of(stock))
