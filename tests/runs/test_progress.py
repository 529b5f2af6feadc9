"""Progress: plain lines where there is no terminal, a bar where there is one."""

from __future__ import annotations

import io

import pytest

from seewhen.runs import progress
from seewhen.runs.progress import Progress, duration


class Clock:
    now = 0.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_durations():
    assert [duration(s) for s in (0.4, 59, 61, 3599, 7620)] == ["0s", "59s", "1m01s", "59m59s", "2h07m"]


def test_plain_lines_now_and_then_with_rate_and_time_left(clock):
    stream = io.StringIO()
    with Progress("pope cai", total=100, already=20, stream=stream) as shown:
        for _ in range(4):
            clock.now += 6
            shown.advance(20)
    assert stream.getvalue().splitlines() == [
        "pope cai: 60/100 (60%) 3.3/s, 12s left",
        "pope cai: 100/100 (100%) 3.3/s, took 24s",
    ]


def test_nothing_new_says_nothing(clock):
    stream = io.StringIO()
    with Progress("pope", total=10, already=10, stream=stream):
        pass
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar(clock):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with Progress("pope cai", total=4, stream=stream) as shown:
        clock.now += 2
        shown.advance(4)
    assert "4/4" in stream.getvalue()
    assert "2.0/s, took 2s" in stream.getvalue()
