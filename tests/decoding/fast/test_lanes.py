"""Answers that join and leave each other's batch between steps equal the answers that are decoded alone."""

from __future__ import annotations

import copy
import functools
import warnings
from dataclasses import dataclass, field

import pytest
import torch

import seewhen
import tiny
from seewhen.backbones.backbone import Backbone
from seewhen.decoding.fast.lane import Seat
from seewhen.decoding.fast.lanes import Lanes
from seewhen.decoding.fast.slots import Choice
from seewhen.equations.drawing import drawn, nucleus

METHODS = {
    "regular": seewhen.method("regular"),
    "cai": seewhen.method("cai", start_layer=1),
    "cai+contrast": seewhen.method("cai", start_layer=1, threshold=-1.0, contrast=3.0),
    "vcd": seewhen.method("vcd"),
    "pai": seewhen.method("pai"),
    "m3id": seewhen.method("m3id", k=0.2, gate_alpha=None),
    "dola": seewhen.method("dola"),
    "cai+vcd": seewhen.method("cai+vcd"),
}
LENGTHS = (9, 3, 7, 5)  # tokens of each answer
TEXTS = (4, 7, 5, 9)  # and words of each prompt


@functools.cache
def prompts(family):
    return [tiny.inputs(family, text_lengths=(words,), seed=seed) for seed, words in enumerate(TEXTS)]


@functools.cache
def alone(family, name):
    """Tokens and fired tokens of each prompt, in transformers' own loop."""
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with seewhen.attach(tiny.model(family), METHODS[name], fast="off") as handle:
            for inputs, tokens in zip(prompts(family), LENGTHS, strict=True):
                output = tiny.model(family).generate(
                    **inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0
                )
                fired = handle.trace.fired_tokens()[0] if "gate" in handle.trace.tensors else None
                found.append((output[0, -tokens:].tolist(), fired))
    return found


@dataclass
class Asked:
    """One answer of a test."""

    prompt: int
    method: seewhen.Method
    tokens: int
    step: int = 0  # when it comes
    choice: Choice = field(default_factory=Choice)
    got: list = field(default_factory=list)
    likely: list = field(default_factory=list)
    fired: int | None = None


def answered(lanes, family, asked, until=lambda each: len(each.got) == each.tokens):
    """Decode all, each from its own step on; returns the asked."""
    waiting, seats, tick = list(asked), {}, 0
    while waiting or lanes.busy:
        for each in [each for each in waiting if each.step <= tick]:
            inputs = prompts(family)[each.prompt]
            columns = inputs["input_ids"].shape[1] + each.tokens + 8
            if lanes.fits(each.method, columns, 16, 1):
                seat = Seat(each.choice, each.tokens, 0, runners=2)
                seats[seat] = each, lanes.join(each.method, inputs, columns, [[seat]])
                waiting.remove(each)
        for lane in lanes.busy:
            for token in list(lanes.advance(lane)):
                each, home = seats[token.seat]
                each.got.append(token.id)
                each.likely.append(token.likely)
                if until(each):
                    each.fired = home.fired(token.seat, len(each.got))
                    home.leave(token.seat)
        tick += 1
        assert tick < 200
    lanes.clear()
    return asked


def lanes_of(family, slots=4, model=None, **settings):
    model = model or tiny.model(family)
    return Lanes(model, Backbone.of(model), slots=slots, fast="graph", **settings)


@pytest.mark.parametrize("name", METHODS)
def test_joining_and_leaving_answers_equal_single_ones(name):
    check("llava", name)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "instructblip", "paligemma"])
def test_in_other_families(family):
    check(family, "cai+contrast")


def check(family, name):
    lanes = lanes_of(family, slots=2)  # the last has to wait until somebody leaves
    asked = [Asked(n, METHODS[name], tokens, step=2 * n) for n, tokens in enumerate(LENGTHS)]
    found = [(each.got, each.fired) for each in answered(lanes, family, asked)]
    assert found == alone(family, name)
    (lane,) = lanes.lanes.values()
    assert sorted(lane.steps) == [1, 2], "one answer is decoded in one slot"


def test_methods_take_turns():
    """Each method has a lane of its own; none disturbs the other."""
    names = ("regular", "cai+contrast")
    asked = [Asked(n, METHODS[name], LENGTHS[n], step=n) for n in range(len(LENGTHS)) for name in names]
    answered(lanes_of("llava"), "llava", asked)
    for name in names:
        assert [each.got for each in asked if each.method == METHODS[name]] == [t for t, _ in alone("llava", name)]


def test_a_sampled_answer_is_its_own():
    """It depends on its stream, not on its company, its slot or the step at which it came."""
    method = METHODS["cai"]

    def draw(stream, temperature=1.5):
        return Choice(temperature, 0.9, 0.01, stream)

    lone = answered(lanes_of("llava"), "llava", [Asked(1, method, 9, choice=draw(5))])[0]
    company = [
        Asked(0, method, 9, choice=draw(6)),
        Asked(2, method, 4),
        Asked(3, method, 9, step=1, choice=draw(7)),
    ]
    late = Asked(1, method, 9, step=3, choice=draw(5))
    answered(lanes_of("llava"), "llava", [*company, late])
    assert late.got == lone.got
    assert company[1].got == alone("llava", "cai")[2][0][:4], "a greedy answer among sampled ones"
    other = answered(lanes_of("llava"), "llava", [Asked(1, method, 9, choice=draw(8))])[0]
    assert other.got != lone.got


@pytest.mark.parametrize("name", ["cai", "cai+contrast"])
def test_with_one_width_bits_do_not_depend_on_company(name):
    """Also in bfloat16, where another shape would round differently."""
    model = copy.deepcopy(tiny.model("llava")).to(torch.bfloat16)
    method = METHODS[name]

    def bits(asked):
        answered(lanes_of("llava", model=model, widths=(4,)), "llava", asked)
        return [(each.got, [likely.log_prob for likely in each.likely]) for each in asked]

    single = [bits([Asked(n, method, 6)])[0] for n in range(3)]
    assert bits([Asked(n, method, 6, step=n) for n in range(3)]) == single


def test_log_probabilities_come_with_tokens():
    asked = answered(lanes_of("llava"), "llava", [Asked(0, METHODS["regular"], 3)])[0]
    inputs = prompts("llava")[0]
    logits = tiny.model("llava")(**inputs).logits[0, -1]
    expected = torch.log_softmax(logits, dim=-1).topk(2)
    assert [token for token, _ in asked.likely[0].best] == expected.indices.tolist()
    for (_, value), wanted in zip(asked.likely[0].best, expected.values.tolist(), strict=True):
        assert abs(value - wanted) < 1e-4
    assert asked.likely[0].log_prob == asked.likely[0].best[0][1]


def test_an_answer_that_nobody_wants_makes_room():
    """Given up in the middle; whoever waited takes its slot, and its neighbour does not notice."""
    method = METHODS["cai"]
    gone, stays, next_ = Asked(0, method, 9), Asked(2, method, 7), Asked(3, method, 5, step=1)
    limits = {id(gone): 2, id(stays): 7, id(next_): 5}
    lanes = lanes_of("llava", slots=2)
    answered(lanes, "llava", [gone, stays, next_], until=lambda each: len(each.got) == limits[id(each)])
    assert stays.got == alone("llava", "cai")[2][0]
    assert next_.got == alone("llava", "cai")[3][0]
    assert gone.got == alone("llava", "cai")[0][0][:2]


def test_memory_has_a_budget():
    """Lanes that nobody uses go, the longest unused first; in use they stay, and others wait."""
    names = ("regular", "cai", "m3id")
    lanes = lanes_of("llava", slots=2)
    one = lanes._bytes(METHODS["regular"], 64)
    lanes.budget = int(4.5 * one)  # m3id has a second row
    asked = [Asked(n, METHODS[name], LENGTHS[n], step=30 * n) for n, name in enumerate(names)]
    answered(lanes, "llava", asked)
    assert [each.got for each in asked] == [alone("llava", name)[n][0] for n, name in enumerate(names)]
    assert [key[0] for key in lanes.lanes] == [METHODS["m3id"].fingerprint]
    busy = lanes_of("llava", slots=2)
    busy.budget = int(2.5 * one)
    seat = Seat(Choice(), 5, 0)
    lane = busy.join(METHODS["cai"], prompts("llava")[0], 64, [[seat]])
    assert not busy.fits(METHODS["regular"], 64, 16, 1)
    assert busy.fits(METHODS["cai"], 64, 16, 1) and not busy.fits(METHODS["cai"], 64, 16, 2)
    lane.leave(seat)
    assert busy.fits(METHODS["regular"], 64, 16, 1)
    busy.clear()


def test_the_model_is_as_it_was_afterwards():
    model = tiny.model("llava")

    def hooks():
        names = ("_forward_hooks", "_forward_pre_hooks")
        return sum(len(getattr(module, name)) for module in model.modules() for name in names)

    def now():
        return model.config.text_config._attn_implementation, hooks(), "generate" in vars(model)

    before = now()
    answered(lanes_of("llava"), "llava", [Asked(0, METHODS["cai"], 3)])
    assert now() == before


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("llava", "opera"),
        ("llava", "sid"),
        ("llava", "dola:layer_per=batch"),
        ("qwen3_5", "cai"),
        ("gemma3", "cai"),
    ],
)
def test_what_cannot_join_is_not_served(family, method):
    """Loops and memories of their own, rows that look at each other, recurrent and sliding layers."""
    assert not lanes_of(family).serves(seewhen.method(method))


def test_drawing_cuts_what_it_should():
    scores = torch.tensor([[3.0, 2.0, 1.0, -4.0]] * 3)
    chances = torch.softmax(scores[0], dim=-1)
    kept = nucleus(scores, torch.tensor([float(chances[0]) - 0.01, 0.9, 1.0]))
    assert torch.isfinite(kept).sum(dim=1).tolist() == [1, 2, 4]
    keys = torch.tensor([1, 2, 3])
    ones = torch.ones(3)
    lifted = drawn(scores, torch.tensor([0.0, 1.0, 1.0]), ones, torch.tensor([0.0, 0.5, 0.0]), keys)
    assert torch.equal(lifted[0], scores[0]), "greedy rows keep their scores"
    assert torch.isfinite(lifted).sum(dim=1).tolist() == [4, 1, 4]


def test_drawing_draws_from_the_distribution():
    scores = torch.tensor([[1.0, 0.0, -1.0, 2.0]]).repeat(20_000, 1)
    ones = torch.ones(len(scores))
    keys = torch.arange(len(scores)) * 7919
    found = drawn(scores, ones, ones, 0 * ones, keys).argmax(dim=-1).bincount(minlength=4) / len(scores)
    torch.testing.assert_close(found, torch.softmax(scores[0], dim=-1), atol=0.015, rtol=0)
