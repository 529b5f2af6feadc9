"""Lanes on a GPU: answers that join and leave captured steps equal those of transformers' own loop.

Also runs without pytest: `python tests/decoding/fast/test_slots_gpu.py`.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

import seewhen
import tiny
from decoding.test_gpu import on_gpu, pytestmark, run_checks  # noqa: F401  (the mark holds for this file too)
from seewhen.backbones.backbone import Backbone
from seewhen.backbones.shapes import random_inputs, random_model, shape_config
from seewhen.decoding.fast.lane import Seat
from seewhen.decoding.fast.lanes import Lanes
from seewhen.decoding.fast.slots import Choice

FAMILIES = ("llava", "qwen2_5_vl", "qwen3_vl", "internvl", "instructblip")
METHODS = {
    "regular": seewhen.method("regular"),
    "cai": seewhen.method("cai"),
    "cai+contrast": seewhen.method("cai", threshold=-1.0, contrast=3.0),
    "pai": seewhen.method("pai"),
    "vcd": seewhen.method("vcd"),
    "m3id": seewhen.method("m3id", k=0.2, gate_alpha=None),
    "dola": seewhen.method("dola"),
}
LENGTHS = (14, 5, 11, 8, 12)
STEPS = (0, 2, 3, 7, 8)  # when each comes


def prompts(family, dtype=torch.float32):
    """A model, and prompts of different lengths one by one."""
    model, _ = on_gpu(family, dtype)
    rows = len(LENGTHS)
    given = []
    for row in range(rows):
        alone = tiny.inputs(family, rows=rows, text_lengths=tuple(range(4, 4 + rows)), only=row)
        given.append({n: v.to("cuda", dtype) if v.is_floating_point() else v.to("cuda") for n, v in alone.items()})
    return model, given


def stock(model, given, method):
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with seewhen.attach(model, method, fast="off"):
            for inputs, tokens in zip(given, LENGTHS, strict=True):
                output = model.generate(
                    **inputs, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0
                )
                found.append(output[0, -tokens:].tolist())
    return found


def joined(model, given, method, choices=None, steps=STEPS, **settings):
    """The answers in lanes; also whether steps were captured."""
    lanes = Lanes(model, Backbone.of(model), slots=4, fast="graph", **settings)
    got, seats, tick = [[] for _ in given], {}, 0
    waiting = sorted(range(len(given)), key=lambda n: steps[n])
    while waiting or lanes.busy:
        while waiting and steps[waiting[0]] <= tick and lanes.fits(method, 128, 16, 1):
            number = waiting.pop(0)
            seat = Seat((choices or {}).get(number, Choice()), LENGTHS[number], 0, runners=1)
            seats[seat] = number, lanes.join(method, given[number], 128, [[seat]])
        for lane in lanes.busy:
            for token in list(lanes.advance(lane)):
                number, home = seats[token.seat]
                got[number].append((token.id, token.likely.log_prob))
                if len(got[number]) == LENGTHS[number]:
                    home.leave(token.seat)
        tick += 1
    captured = [step.captured for lane in lanes.lanes.values() for step in lane.steps.values() if step.made > 1]
    lanes.clear()
    return got, all(captured)


def test_joining_and_leaving_answers_equal_stock():
    wrong = []
    for family in FAMILIES:
        for name, method in METHODS.items():
            if family != "llava" and name not in ("regular", "cai+contrast"):
                continue
            model, given = prompts(family)
            got, captured = joined(model, given, method)
            if not captured:
                wrong.append((family, name, "not captured"))
            if [[token for token, _ in answer] for answer in got] != stock(model, given, method):
                wrong.append((family, name, "tokens"))
    assert not wrong, wrong


def test_with_one_width_bits_do_not_depend_on_company():
    for name in ("cai", "cai+contrast"):
        model, given = prompts("llava", torch.bfloat16)
        together, _ = joined(model, given, METHODS[name], widths=(4,))
        apart, _ = joined(model, given, METHODS[name], widths=(4,), steps=tuple(30 * n for n in range(len(given))))
        assert together == apart, name


def test_a_sampled_answer_is_its_own():
    model, given = prompts("llava")
    choices = {n: Choice(1.2, 0.9, 0.0, 11 + n) for n in (0, 2, 3)}
    together, _ = joined(model, given, METHODS["cai"], choices)
    apart, _ = joined(model, given, METHODS["cai"], choices, steps=tuple(30 * n for n in range(len(given))))
    assert [[t for t, _ in a] for a in together] == [[t for t, _ in a] for a in apart]


def test_prompts_read_beside_steps_leave_the_same():
    """Bit for bit what prompts leave that are read when no step runs; with layers large enough to run together."""
    config = shape_config("llava-1.5-7b")
    config.text_config.num_hidden_layers = config.vision_config.num_hidden_layers = 4
    model = random_model(config, device="cuda", dtype=torch.bfloat16)
    backbone, method = Backbone.of(model), seewhen.method("cai", threshold=-1.0, start_layer=1)
    given = [random_inputs(config, dtype=torch.bfloat16, seed=seed) for seed in range(3)]

    def answers(beside):
        lanes = Lanes(model, backbone, slots=4, fast="graph", widths=(4,))
        if not beside:
            lanes._beside.taken = lambda: None  # each waits for all that is queued
        got, seats = [[] for _ in range(30)], {}
        while len(seats) < len(got) or lanes.busy:
            if len(seats) < len(got) and lanes.fits(method, 700, 576, 1):
                number = len(seats)
                seat = Seat(Choice(), 20 + number % 7, 0, runners=1)
                seats[seat] = number
                lanes.join(method, given[number % 3], 700, [[seat]])
            for lane in lanes.busy:
                for token in list(lanes.advance(lane)):
                    got[seats[token.seat]].append((token.id, token.likely.log_prob))
                    if len(got[seats[token.seat]]) == token.seat.limit:
                        lane.leave(token.seat)
        lanes.clear()
        return got

    assert answers(True) == answers(False)


if __name__ == "__main__":
    sys.exit(bool(run_checks(globals())))
