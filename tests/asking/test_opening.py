"""Opening a model: the threads it takes."""

from __future__ import annotations

import os

import pytest
import torch

from seewhen.asking import opening


@pytest.mark.parametrize(("cores", "load", "idle"), [(2, 0.2, 2), (2, 1.1, 1), (2, 9.0, 1), (8, 3.0, 5)])
def test_threads_are_left_to_others_that_are_at_work(cores, load, idle, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert opening._idle_cores() == idle


def test_a_small_number_of_threads_stays(monkeypatch):
    taken = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    for most in (1, 2, 5):
        opening._limit_threads(most)
    assert taken == [1, 2, 2]
