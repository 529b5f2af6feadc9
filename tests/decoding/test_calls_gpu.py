"""Calls on a GPU do not meet: threads, nested, abandoned and broken calls; judges take back there too.

Also runs without pytest: `python tests/decoding/test_calls_gpu.py`.
"""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import seewhen
import tiny
from decoding.test_gpu import on_gpu, pytestmark, run_checks  # noqa: F401  (the mark holds for this file too)
from methods.calibrating import fitted_ict, fitted_vti
from seewhen.errors import UnsupportedMode
from wordy import WordyTokenizer

METHODS = {
    "regular": seewhen.method("regular"),
    "min-p": seewhen.method("min-p"),
    "cai": seewhen.method("cai", start_layer=0, threshold=-1.0),
    "cai with contrast": seewhen.method("cai", start_layer=0, threshold=-1.0, contrast=3.0),
    "pai": seewhen.method("pai"),
    "vcd": seewhen.method("vcd"),
    "icd": seewhen.method("icd", sentence_ids=(tiny.FIRST_WORD + 3, tiny.FIRST_WORD + 9)),
    "agla": seewhen.method("agla"),
    "vti": fitted_vti("llava"),
    "ict": fitted_ict("llava"),
    "memvr": seewhen.method("memvr", threshold=0.0, ratio=0.5),
    "m3id": seewhen.method("m3id"),
    "sid": seewhen.method("sid"),
    "only": seewhen.method("only"),
    "dola": seewhen.method("dola"),
    "locore": seewhen.method("locore"),
    "farsight": seewhen.method("farsight"),
    "confirm": seewhen.method("confirm", lexicon="coco").prepare(WordyTokenizer()),
}
OPTIONS = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": 10**6, "pad_token_id": 0}


def asked(family, count=3):
    model, inputs = on_gpu(family, torch.float32, rows=count)
    rows = []
    for row in range(count):
        first = int(inputs["attention_mask"][row].argmax())
        own = {k: v[row : row + 1] for k, v in inputs.items()}
        for name in ("input_ids", "attention_mask"):
            own[name] = own[name][:, first:]
        rows.append(own)
    return model, rows


def test_threads_give_the_serial_answers():
    for name, method in METHODS.items():
        for fast in ("off", "graph"):
            model, prompts = asked("llava")
            with seewhen.attach(model, method, fast=fast):
                serial = [model.generate(**prompt, **OPTIONS) for prompt in prompts]
                with ThreadPoolExecutor(8) as pool:
                    found = list(
                        pool.map(lambda n, m=model, p=prompts: m.generate(**p[n % 3], **OPTIONS), range(24))
                    )
            for number, answer in enumerate(found):
                assert torch.equal(answer, serial[number % 3]), (name, fast, number)


def test_a_call_inside_a_streamer():
    class Asking:
        def __init__(self, ask):
            self.ask, self.answers = ask, []

        def put(self, value):
            if len(self.answers) < 2:
                self.answers.append(None)
                self.answers[-1] = self.ask()

        def end(self):
            pass

    for name, method in METHODS.items():
        model, prompts = asked("llava")
        with seewhen.attach(model, method, fast="graph"):
            outer, inner = (model.generate(**prompt, **OPTIONS) for prompt in prompts[:2])
            streamer = Asking(lambda m=model, p=prompts: m.generate(**p[1], **OPTIONS))
            assert torch.equal(model.generate(**prompts[0], **OPTIONS, streamer=streamer), outer), name
        assert all(torch.equal(answer, inner) for answer in streamer.answers), name


class Streamer:
    """Does something at the third piece."""

    def __init__(self, do):
        self.do, self.seen = do, 0

    def put(self, value):
        self.seen += 1
        if self.seen == 3:
            self.do()

    def end(self):
        pass


def test_an_exception_in_a_streamer_leaves_nothing_behind():
    def fail():
        raise KeyError("the streamer's own error")

    for name, method in METHODS.items():
        for fast in ("off", "graph"):
            model, prompts = asked("llava")
            with seewhen.attach(model, method, fast=fast):
                before = model.generate(**prompts[0], **OPTIONS)
                raised = False
                try:
                    model.generate(**prompts[1], **OPTIONS, streamer=Streamer(fail))
                except KeyError:
                    raised = True
                assert raised and torch.equal(model.generate(**prompts[0], **OPTIONS), before), (name, fast)


def test_an_abandoned_answer_does_not_disturb_the_next():
    for name, method in METHODS.items():
        for fast in ("off", "graph"):
            model, prompts = asked("llava")
            with seewhen.attach(model, method, fast=fast):
                serial = [model.generate(**prompt, **OPTIONS) for prompt in prompts[:2]]
                started, released = threading.Event(), threading.Event()

                def hold(started=started, released=released):
                    started.set()
                    assert released.wait(60)

                thread = threading.Thread(
                    target=lambda m=model, p=prompts, h=hold: m.generate(**p[0], **OPTIONS, streamer=Streamer(h))
                )
                thread.start()
                assert started.wait(60)
                assert torch.equal(model.generate(**prompts[1], **OPTIONS), serial[1]), (name, fast)
                released.set()
                thread.join(60)
                assert torch.equal(model.generate(**prompts[0], **OPTIONS), serial[0]), (name, fast)


def test_a_forked_process_is_told_that_a_gpu_does_not_survive_a_fork():
    model, prompts = asked("llava")
    with seewhen.attach(model, METHODS["cai"], fast="graph"):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                model.generate(**prompts[0], **OPTIONS)
                os.write(writing, b"nothing")
            except UnsupportedMode as error:
                os.write(writing, str(error).encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading) as said:
            assert "forked" in said.read()


def test_leaving_while_a_thread_generates_is_an_error():
    model, prompts = asked("llava")
    inside, left, raised = threading.Event(), threading.Event(), []

    class Holding:
        def put(self, value):
            if not inside.is_set():
                inside.set()
                assert left.wait(60)

        def end(self):
            pass

    def work():
        try:
            model.generate(**prompts[0], **OPTIONS, streamer=Holding())
        except UnsupportedMode as error:
            raised.append(str(error))

    with seewhen.attach(model, METHODS["cai"], fast="graph"):
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(60)
    left.set()
    thread.join(60)
    assert len(raised) == 1 and "was left while" in raised[0]


def test_captured_steps_are_used_again():
    model, prompts = asked("llava")
    with seewhen.attach(model, METHODS["confirm"], fast="graph") as handle:
        first = model.generate(**prompts[0], **OPTIONS)
        again = model.generate(**prompts[0], **OPTIONS)
        assert torch.equal(first, again) and handle.trace.told
    with seewhen.attach(model, METHODS["confirm"], fast="off"):
        assert torch.equal(model.generate(**prompts[0], **OPTIONS), first)


if __name__ == "__main__":
    sys.exit(bool(run_checks(globals())))
