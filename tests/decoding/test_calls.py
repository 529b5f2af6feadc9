"""Calls that do not meet: threads, nested, abandoned and broken ones give the serial answer or one clear error."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

import seewhen
import tiny
from methods.calibrating import fitted_ict, fitted_vti
from seewhen.errors import SeewhenError, UnsupportedMode
from seewhen.methods import method_class, method_names
from wordy import WordyTokenizer

TOKENS = 4
THREADS = 8


def ready(name: str) -> Any:
    """A method of the registry with settings that act on the tiny model, and a file where it wants one."""
    options: dict[str, dict[str, Any]] = {
        "cai": {"start_layer": 0, "threshold": -1.0, "contrast": 3.0},
        "icd": {"sentence_ids": (tiny.FIRST_WORD + 3, tiny.FIRST_WORD + 9)},
        "memvr": {"threshold": 0.0, "ratio": 0.5},
        "saliency": {"first_layer": 0, "last_layer": 1},
    }
    if name in ("vti", "ict"):
        return {"vti": fitted_vti, "ict": fitted_ict}[name]("llava")
    if name == "confirm":
        return seewhen.method(name, lexicon="coco", verdict="asking").prepare(WordyTokenizer())
    return seewhen.method(name, **options.get(name, {}))


def family_of(name: str) -> str:
    return "qwen3_5" if name == "cai-gla" else "llava"


def asked(name: str, row: int) -> dict[str, Any]:
    """Prompts of other lengths and pictures, and how they are decoded."""
    cls = method_class(name)
    decoding: dict[str, Any] = {"max_new_tokens": TOKENS, "eos_token_id": 10**6, "pad_token_id": 0}
    if cls.beams_only:
        decoding |= {"num_beams": 2}
    if cls.samples_only:
        decoding |= {"do_sample": True, "generators": [torch.Generator().manual_seed(row)]}
    else:
        decoding |= {"do_sample": False}
    return {**tiny.inputs(family_of(name), rows=3, only=row % 3), **decoding}


def cases() -> list[Any]:
    found = []
    for name in method_names():
        found.append(pytest.param(name, "off", id=f"{name}-off"))
        cls = method_class(name)
        if cls.compiles and not cls.beams_only:
            found.append(pytest.param(name, "graph", id=f"{name}-graph"))
    return found


every_call = pytest.mark.parametrize(("name", "fast"), cases())


@every_call
def test_threads_give_the_serial_answers(name, fast):
    model, method = tiny.model(family_of(name)), ready(name)
    with seewhen.attach(model, method, fast=fast) as handle:
        serial, traces = [], []
        for row in range(3):
            serial.append(model.generate(**asked(name, row)))
            traces.append(handle.trace)

        def ask(number: int) -> tuple[Tensor, Any]:
            return model.generate(**asked(name, number % 3)), handle.trace

        with ThreadPoolExecutor(THREADS) as pool:
            together = list(pool.map(ask, range(THREADS)))
    # Seeds of sampled rows repeat every three calls as the prompts do.
    for number, (answer, trace) in enumerate(together):
        assert torch.equal(answer, serial[number % 3])
        expected = traces[number % 3]
        assert torch.equal(trace.tokens, expected.tokens)
        for key, tensor in expected.tensors.items():
            torch.testing.assert_close(trace.tensors[key], tensor, rtol=0, atol=0, equal_nan=True)


class Asking(LogitsProcessor):
    """Asks the model something else in the middle of decoding."""

    def __init__(self, model: Any, name: str) -> None:
        self.model, self.name, self.inner = model, name, []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if len(self.inner) < 2:
            self.inner.append(None)
            self.inner[-1] = self.model.generate(**asked(self.name, 1))
        return scores


@every_call
def test_a_call_inside_a_call(name, fast):
    if method_class(name).beams_only:
        pytest.skip("its processors see several rows at once, tested in the thread matrix")
    model, method = tiny.model(family_of(name)), ready(name)
    with seewhen.attach(model, method, fast=fast) as handle:
        outer, inner = (model.generate(**asked(name, row)) for row in (0, 1))
        asking = Asking(model, name)
        arguments = asked(name, 0) | {"logits_processor": LogitsProcessorList([asking])}
        assert torch.equal(model.generate(**arguments), outer)
        assert torch.equal(handle.trace.tokens[:, 0], outer[0, -TOKENS:])
    assert len(asking.inner) == 2 and all(torch.equal(answer, inner) for answer in asking.inner)


class Reading(LogitsProcessor):
    """Reads something else with the model itself, without `generate`, as transformers' guidance does."""

    def __init__(self, model: Any, family: str) -> None:
        self.model, self.other = model, tiny.inputs(family, rows=3, only=2)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.model(**self.other)
        return scores


@every_call
def test_a_pass_of_a_processor_is_not_the_calls(name, fast):
    model, method = tiny.model(family_of(name)), ready(name)
    with seewhen.attach(model, method, fast=fast) as handle:
        serial = []
        for row in (0, 1):
            serial.append((model.generate(**asked(name, row)), None if name == "opera" else handle.trace))
        for row in (0, 1, 0):  # the captured step of the first serves the others
            processors = LogitsProcessorList([Reading(model, family_of(name))])
            answer, trace = serial[row]
            assert torch.equal(model.generate(**asked(name, row), logits_processor=processors), answer)
            if trace is not None:
                for key, tensor in trace.tensors.items():
                    torch.testing.assert_close(handle.trace.tensors[key], tensor, rtol=0, atol=0, equal_nan=True)


class Streamer:
    """Passes tokens on; breaks, waits or asks where it is told to."""

    def __init__(self, at: int, do: Any) -> None:
        self.at, self.do, self.seen = at, do, 0

    def put(self, value: Tensor) -> None:
        self.seen += 1
        if self.seen == self.at:
            self.do()

    def end(self) -> None:
        pass


@every_call
def test_an_exception_in_a_streamer_leaves_nothing_behind(name, fast):
    if name == "opera":
        pytest.skip("opera refuses streamers")
    model, method = tiny.model(family_of(name)), ready(name)

    def fail() -> None:
        raise KeyError("the streamer's own error")

    with seewhen.attach(model, method, fast=fast):
        before = model.generate(**asked(name, 0))
        with pytest.raises(KeyError, match="own error"):
            model.generate(**asked(name, 1), streamer=Streamer(3, fail))
        assert torch.equal(model.generate(**asked(name, 0)), before)


@every_call
def test_an_abandoned_answer_does_not_disturb_the_next(name, fast):
    if name == "opera":
        pytest.skip("opera refuses the streamer that holds it here")
    model, method = tiny.model(family_of(name)), ready(name)
    with seewhen.attach(model, method, fast=fast):
        serial = [model.generate(**asked(name, row)) for row in range(2)]
        released, started = threading.Event(), threading.Event()

        def hold() -> None:  # the consumer went away after the first token; the producer waits
            started.set()
            assert released.wait(60)

        thread = threading.Thread(target=lambda: model.generate(**asked(name, 0), streamer=Streamer(2, hold)))
        thread.start()
        assert started.wait(60)
        assert torch.equal(model.generate(**asked(name, 1)), serial[1])
        released.set()
        thread.join(60)
        assert torch.equal(model.generate(**asked(name, 0)), serial[0])


@every_call
def test_a_call_inside_a_streamer(name, fast):
    if name == "opera":
        pytest.skip("opera refuses streamers")
    model, method = tiny.model(family_of(name)), ready(name)
    with seewhen.attach(model, method, fast=fast):
        outer, inner = (model.generate(**asked(name, row)) for row in (0, 1))
        found: list[Tensor] = []
        streamer = Streamer(3, lambda: found.append(model.generate(**asked(name, 1))))
        assert torch.equal(model.generate(**asked(name, 0), streamer=streamer), outer)
    assert len(found) == 1 and torch.equal(found[0], inner)


@every_call
def test_leaving_while_a_thread_generates_is_one_clear_error(name, fast):
    if name == "opera":
        pytest.skip("opera refuses the streamer that holds it here")
    model, method = tiny.model(family_of(name)), ready(name)
    plain = model.generate(**tiny.inputs(family_of(name), rows=3, only=0), max_new_tokens=2, do_sample=False)
    inside, left, raised = threading.Event(), threading.Event(), []

    def hold() -> None:
        inside.set()
        assert left.wait(60)

    def work() -> None:
        try:
            model.generate(**asked(name, 0), streamer=Streamer(2, hold))
        except BaseException as error:
            raised.append(error)

    with seewhen.attach(model, method, fast=fast):
        thread = threading.Thread(target=work)
        thread.start()
        assert inside.wait(60)
    left.set()
    thread.join(60)
    assert [type(error) for error in raised] == [UnsupportedMode] and "was left while" in str(raised[0])
    assert not model.get_decoder()._forward_pre_hooks  # the hook that stopped it went with it
    again = model.generate(**tiny.inputs(family_of(name), rows=3, only=0), max_new_tokens=2, do_sample=False)
    assert torch.equal(again, plain)


def forked(work: Callable[[], bool]) -> bool:
    """What `work` says in a forked process, which has this thread only."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forking with threads
        child = os.fork()
    if child == 0:
        said = b"failed"
        try:
            said = b"yes" if work() else b"no"
        finally:
            os.write(writing, said)
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        return answer.read() == b"yes"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A forked process has no other threads of torch's pool."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


@forks
@every_call
def test_a_forked_process_gives_the_same_answers(name, fast, one_thread):
    model, method = tiny.model(family_of(name)), ready(name)
    with seewhen.attach(model, method, fast=fast):
        serial = model.generate(**asked(name, 0))
        assert forked(lambda: torch.equal(model.generate(**asked(name, 0)), serial))
        assert torch.equal(model.generate(**asked(name, 0)), serial)


@forks
def test_a_forked_process_leaves_without_the_threads_that_stayed_behind(one_thread):
    """Calls of other threads do not run in the new process, so nothing there waits for their end."""
    model, started, released = tiny.model("llava"), threading.Event(), threading.Event()

    def hold() -> None:
        started.set()
        assert released.wait(60)

    context = seewhen.attach(model, ready("cai"), fast="off")
    with context:
        thread = threading.Thread(target=lambda: model.generate(**asked("cai", 0), streamer=Streamer(2, hold)))
        thread.start()
        assert started.wait(60)

        def leave() -> bool:
            context.__exit__(None, None, None)
            return not model.get_decoder()._forward_pre_hooks

        assert forked(leave)
        released.set()
        thread.join(60)


def test_attaching_while_the_model_generates_is_one_clear_error():
    model, raised = tiny.model("llava"), list[BaseException]()
    inside, attached = threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        assert attached.wait(60)

    def work() -> None:
        try:
            model.generate(**asked("regular", 0), streamer=Streamer(2, hold))
        except SeewhenError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    with seewhen.attach(model, "cai"):
        attached.set()
        thread.join(60)
    assert len(raised) == 1 and "attached while the model was generating" in str(raised[0])
