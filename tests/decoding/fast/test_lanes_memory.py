"""Lanes under strain: many methods, little memory, captures that fail, answers that come and go for long."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from test_lanes import LENGTHS, METHODS, Asked, alone, answered, lanes_of, prompts

import seewhen
from seewhen.decoding.fast import lanes as lanes_module
from seewhen.decoding.fast import prompts as prompts_module
from seewhen.decoding.fast import slots as slots_module
from seewhen.decoding.fast.lane import Seat
from seewhen.decoding.fast.slots import Choice, Slots
from seewhen.errors import UnsupportedMode


def test_ever_new_parameters_stay_within_the_budget():
    """What prompts are read into counts, and goes with the method's last lane."""
    lanes = lanes_of("llava", slots=2)
    lanes.budget = int(5 * lanes._bytes(METHODS["regular"], 64))
    for number in range(12):
        method = seewhen.method("cai", start_layer=1, threshold=0.01 * number)
        answered(lanes, "llava", [Asked(n, method, 2, step=4 * n) for n in range(2)])
        held = sum(each.reader.bytes for each in lanes._sessions.values())
        assert held and held + sum(lane.bytes for lane in lanes.lanes.values()) <= lanes.budget
    assert len(lanes._sessions) == len(lanes.lanes) == 2
    lanes.spare()
    assert not lanes.lanes and not lanes._sessions


def test_a_lane_that_was_made_narrow_grows():
    """Another method had the memory; when it is gone, the next answer finds the room it would have had."""
    lanes = lanes_of("llava", slots=2)
    lanes.budget = int(3.5 * lanes._bytes(METHODS["regular"], 64))
    seats = [Seat(Choice(), 3, 0) for _ in range(3)]
    first = lanes.join(METHODS["cai"], prompts("llava")[0], 64, [seats[:2]])
    narrow = lanes.join(METHODS["regular"], prompts("llava")[1], 64, [[seats[2]]])
    assert (first.widths, narrow.widths) == ((1, 2), (1,))
    for seat in seats[:2]:
        first.leave(seat)
    assert not lanes.fits(METHODS["regular"], 64, 16, 1), "it is full, and cannot grow while it is used"
    narrow.leave(seats[2])
    assert lanes.fits(METHODS["regular"], 64, 16, 2)
    asked = [Asked(n, METHODS["regular"], LENGTHS[n]) for n in range(2)]
    answered(lanes, "llava", asked)
    assert [each.got for each in asked] == [tokens for tokens, _ in alone("llava", "regular")[:2]]
    assert [lane.widths for lane in lanes.lanes.values() if lane.session.method.name == "regular"] == [(1, 2)]


@pytest.mark.parametrize(
    ("slots", "widths"), [(1, (1,)), (3, (1, 2, 3)), (4, (1, 2, 4)), (48, (1, 2, 4, 8, 16, 32, 48))]
)
def test_there_are_as_many_slots_as_asked_for(slots, widths):
    assert lanes_of("llava", slots=slots).widths == widths


@pytest.mark.parametrize("name", ["cai", "cai+contrast"])
def test_answers_come_and_go_for_long(name, monkeypatch):
    """More steps than a lane has columns, at random, greedy and sampled, some given up half way."""
    monkeypatch.setattr(lanes_module, "_COLUMNS", 64)
    chance, method = random.Random(3), METHODS[name]
    sampled = {}
    for stream in range(4):
        one = Asked(stream, method, 6, choice=Choice(1.3, 0.95, 0.0, stream))
        sampled[stream] = answered(lanes_of("llava"), "llava", [one])[0].got
    asked, step = [], 0
    for number in range(70):
        prompt = number % 4
        drawn = number % 3 == 0
        choice = Choice(1.3, 0.95, 0.0, prompt) if drawn else Choice()
        asked.append(Asked(prompt, method, 6 if drawn else LENGTHS[prompt], step=step, choice=choice))
        step += chance.choice((0, 1, 4))
    leaves = {id(each): chance.choice((each.tokens, each.tokens, 2)) for each in asked}
    lanes = lanes_of("llava", slots=3)
    answered(lanes, "llava", asked, until=lambda each: len(each.got) == leaves[id(each)])
    for each in asked:
        greedy, fired = alone("llava", name)[each.prompt]
        assert each.got == (sampled[each.prompt] if each.choice.temperature else greedy)[: leaves[id(each)]]
        if each.got == greedy:
            assert each.fired == fired, "records go round and round"
    (lane,) = lanes.lanes.values()
    assert sorted(lane.steps) == [1, 2, 3]
    assert sum(step.made for step in lane.steps.values()) > lane.columns == 64


def test_a_prompt_longer_than_was_said_writes_into_nobody_s_columns(monkeypatch):
    monkeypatch.setattr(lanes_module, "_COLUMNS", 64)
    lanes, (inputs, *_) = lanes_of("llava"), prompts("llava")
    room = 64 - inputs["input_ids"].shape[1]
    with pytest.raises(UnsupportedMode, match="more than were asked for"):
        lanes.join(METHODS["cai"], inputs, 64, [[Seat(Choice(), room + 1, 0)]])
    assert not lanes.busy
    lane = lanes.join(METHODS["cai"], inputs, 64, [[Seat(Choice(), room, 0)]])
    while lanes.busy:
        assert len(list(lanes.advance(lane))) <= 2
        for seat in [seat for seat in lane.seats if seat is not None and seat.made == seat.limit]:
            lane.leave(seat)
    lanes.clear()


def test_a_step_that_could_not_be_captured_is_tried_again(monkeypatch):
    """Memory may have been short; until then it runs as it is."""
    tried = []

    def captured_graph(step):
        tried.append(slots.made)
        return step, len(tried) == 2

    monkeypatch.setattr(slots_module, "captured_graph", captured_graph)
    slots = Slots.__new__(Slots)
    slots.session = slots.sequence = SimpleNamespace(placement=None)
    slots.device, slots.made, slots.captured, slots._try_at = torch.device("cuda"), 0, False, 1
    ran = []
    slots._step = lambda: ran.append(slots.made)
    for _ in range(600):
        slots.run()
    assert tried == [1, 256] and slots.captured and ran == list(range(600))


def test_a_prompt_is_read_though_there_is_no_room_to_capture_it(monkeypatch):
    def no_room(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(prompts_module._Reading, "of", no_room)
    asked = [Asked(0, METHODS["cai"], LENGTHS[0], step=20 * n) for n in range(3)]
    answered(lanes_of("llava"), "llava", asked)
    assert [each.got for each in asked] == [alone("llava", "cai")[0][0]] * 3


def test_forms_of_prompts_are_forgotten(monkeypatch):
    """Pictures of any size make ever new forms; those that are captured stay."""
    monkeypatch.setattr(prompts_module, "_MOST_COUNTED", 10)
    passes = prompts_module.Passes()
    assert [passes.of("often", lambda pool: "captured") for _ in range(2)] == [None, "captured"]
    for number in range(100):
        assert passes.of(number, lambda pool: "captured") is None
        assert len(passes._counts) <= 10
    assert passes.of("often", lambda pool: "again") == "captured"


def test_a_prompt_that_fails_half_way_leaves_no_answers_behind(monkeypatch):
    """The second of its two answers finds no seat; the first one's is free again."""
    lanes, put = lanes_of("llava", slots=2), Slots.put
    lane = lanes.join(METHODS["cai"], prompts("llava")[0], 64, [[Seat(Choice(), 3, 0)]])
    lane.leave(lane.seats[0])

    def failing(self, read, row, slot, *rest):
        if slot == 1:
            raise RuntimeError("on purpose")
        put(self, read, row, slot, *rest)

    monkeypatch.setattr(Slots, "put", failing)
    with pytest.raises(RuntimeError, match="on purpose"):
        lanes.join(METHODS["cai"], prompts("llava")[0], 64, [[Seat(Choice(), 3, 0), Seat(Choice(), 3, 0)]])
    assert lane.busy == 0 and lane.room == 2
    monkeypatch.undo()
    asked = [Asked(n, METHODS["cai"], LENGTHS[n]) for n in range(2)]
    answered(lanes, "llava", asked)
    assert [(each.got, each.fired) for each in asked] == alone("llava", "cai")[:2]
