"""Work in processes of its own: the same results, in order, whatever happens to a process."""

from __future__ import annotations

import io
import os
import signal
import sys

import pytest
import torch
from rich.console import Console

import seewhen
from seewhen.asking import one_picture
from seewhen.asking.beside import done_beside
from seewhen.asking.one_picture import PictureQuestion
from seewhen.asking.options import DESCRIBE, Decoding
from seewhen.cli.compare import run
from seewhen.errors import UnsupportedMode
from seewhen.methods.grammar import choose
from seewhen.scenes import render, sample

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


def test_results_and_words_come_in_order():
    """Also much of it, which no pipe holds; every other thing goes to the same process."""

    def work(thing, out):
        out.write(f"<{thing}")
        out.write(">")
        return [os.getpid(), thing * 200_000]

    said: list[str] = []
    found = list(done_beside(work, ["a", "b", "c", "d", "e"], 2, said.append))
    assert "".join(said) == "<a><b><c><d><e>"
    assert [text for _, text in found] == [letter * 200_000 for letter in "abcde"]
    pids = [pid for pid, _ in found]
    assert pids == [pids[0], pids[1]] * 2 + [pids[0]] and len({*pids, os.getpid()}) == 3


@pytest.mark.parametrize("how", ["raises", "is killed", "says what is no JSON"])
def test_a_process_that_fails_gives_nothing(how):
    def work(thing, out):
        if thing == 2 and how == "raises":
            raise ValueError
        if thing == 2 and how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return object() if thing == 2 else thing

    assert list(done_beside(work, range(6), 2, str)) == [0, 1, None, 3, None, 5]


def test_processes_end_with_the_one_that_waits():
    """Who takes no further results leaves nobody at work."""

    def work(thing, out):
        if thing:
            signal.pause()
        return os.getpid()

    results = done_beside(work, [0, 1], 2, str)
    pid = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _asked(loaded=None, **options):
    decoding = Decoding(**{"max_new_tokens": 24, "do_sample": True, **options})
    return PictureQuestion(loaded or seewhen.load(device="cpu"), render(sample("shifted", 3)), DESCRIBE, decoding)


def _terminal():
    return Console(file=io.StringIO(), force_terminal=True, width=80, highlight=False)


@pytest.mark.parametrize("do_sample", [True, False])
def test_methods_answer_alike_beside_each_other_and_one_after_the_other(do_sample, monkeypatch):
    """Same words on the terminal, same replies, same traces with the same picture."""
    own = [] if do_sample else ["opera"]  # a search, which is not streamed and says so
    chosen = choose(["regular", "cai", "confirm:coco", "cai+confirm:coco", *own])
    loaded, told = seewhen.load(device="cpu"), {}
    for cores in (1, 2):
        monkeypatch.setattr(one_picture, "free_cores", lambda cores=cores: cores)
        console = _terminal()
        replies, _ = run(console, _asked(loaded, do_sample=do_sample), chosen, quiet=False, timed=False)
        told[cores] = (console.file.getvalue(), replies)
    assert told[1][0] == told[2][0] and "regular" in told[1][0]
    for one, other in zip(told[1][1], told[2][1], strict=True):
        assert (one.label, one.method, one.text, one.notes) == (other.label, other.method, other.text, other.notes)
        if one.trace is None:
            assert other.trace is None
            continue
        here, there = one.trace.whole(), other.trace.whole()
        assert (here.told, here.texts, here.grids, here.does) == (there.told, there.texts, there.grids, there.does)
        assert here.pictures == there.pictures != ()
        assert here.tensors.keys() == there.tensors.keys()
        for name, values in here.tensors.items():
            torch.testing.assert_close(values, there.tensors[name], atol=1e-4, rtol=1e-4, equal_nan=True)


def test_what_a_method_refuses_is_told_as_ever(monkeypatch):
    monkeypatch.setattr(one_picture, "free_cores", lambda: 2)
    asked = _asked(num_beams=2)
    with pytest.raises(UnsupportedMode, match="beam search"):
        list(asked.answers(choose(["regular", "confirm:coco"]), lambda *_: None, str))


def test_the_tower_sees_a_picture_once():
    asked, seen = _asked(max_new_tokens=4), []
    tower = asked.asker.model.base_model.vision_tower
    tower.register_forward_pre_hook(lambda *_: seen.append(1))
    methods = choose(["regular", "cai", "confirm:coco"])
    said = [asked.answer(method, full=True).text for method in methods]
    assert len(seen) == 1 and "get_image_features" not in vars(asked.asker.model.base_model)
    other = PictureQuestion(
        (asked.asker.model, asked.asker.processor), render(sample("shifted", 9)), DESCRIBE, asked.decoding
    )
    other._kept = asked._kept
    other.answer(methods[0], full=True)
    assert len(seen) == 2, "another picture is another"
    assert asked.answer(methods[0], full=True).text == said[0]
