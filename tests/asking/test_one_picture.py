"""What an answer cost is that of the whole answer: also the steps for what was never said."""

from __future__ import annotations

import pytest

import seewhen
from seewhen.asking import one_picture
from seewhen.asking.one_picture import PictureQuestion
from seewhen.asking.options import DESCRIBE, Decoding
from seewhen.methods.grammar import choose
from seewhen.scenes import dataset, render


def test_what_is_taken_back_is_in_the_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks with every pass of the decoder."""
    passes = [0]
    asked = PictureQuestion(
        seewhen.load(), render(dataset("shifted", 4)[3]), DESCRIBE, Decoding(max_new_tokens=48)
    )
    asked.asker.backbone.decoder.register_forward_pre_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))
    monkeypatch.setattr(one_picture.time, "perf_counter", lambda: float(passes[0]))
    monkeypatch.setattr(one_picture, "_TIMED_SECONDS", 1e9)
    monkeypatch.setattr(one_picture, "_TIMED_ROUNDS", 1)
    (strict,) = choose(["confirm:coco:threshold=1"])
    reply = asked.answer(strict, full=True)
    assert reply.trace is not None and reply.trace.told[0]["taken_back"]
    lengths: list[int] = []
    timed = asked._timed
    monkeypatch.setattr(asked, "_timed", lambda method, most: (lengths.append(most), timed(method, most))[1])
    (cost,) = asked.costs([strict])
    assert cost.ratio > 1.5 and cost.ms_per_token > 1500
    assert set(lengths[1:]) == {48}, "whole answers, but for the first call, which warms up"
