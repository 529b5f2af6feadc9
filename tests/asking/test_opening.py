"""Opening a model: the threads it takes."""

from __future__ import annotations

import os

import pytest
import torch

from seewhen.asking import opening


@pytest.fixture(autouse=True)
def _no_number_of_threads_is_told(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.parametrize(
    ("cores", "ours", "running", "idle"),
    [(2, 2, 1, 2), (2, 2, 2, 1), (2, 2, 9, 1), (8, 8, 4, 5), (64, 4, 33, 2)],
)
def test_threads_are_left_to_others_that_are_at_work(cores, ours, running, idle, monkeypatch, tmp_path):
    """One of those that run is the one that asks; on a large machine the others are not all on our few cores."""
    loads = tmp_path / "loadavg"
    loads.write_text(f"0.00 7.00 7.00 {running}/170 999\n")  # the averages know nothing of now
    monkeypatch.setattr(opening, "_LOADS", loads)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(ours)), raising=False)
    assert opening.free_cores() == idle


@pytest.mark.parametrize(("load", "idle"), [(0.2, 2), (1.1, 1), (9.0, 1)])
def test_elsewhere_the_load_of_the_last_minute_tells(load, idle, monkeypatch, tmp_path):
    monkeypatch.setattr(opening, "_LOADS", tmp_path / "none")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0), raising=False)
    assert opening.free_cores() == idle


def test_a_small_number_of_threads_stays(monkeypatch):
    taken = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", taken.append)
    for most in (1, 2, 5):
        opening._limit_threads(most)
    assert taken == [1, 2, 2]
