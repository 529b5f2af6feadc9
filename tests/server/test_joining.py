"""Continuous batching: answers that join captured steps (on a CPU the same steps, uncaptured) equal those of the
other way, one by one."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loopback import MODEL, Running, counted, question, running, until
from test_batching import CASES, ask

import seewhen
from seewhen.server.company import Company, Prompt
from seewhen.server.jobs import Job
from seewhen.server.limits import Limits


@pytest.fixture(scope="module")
def joining(checkpoint: Path) -> Iterator[Running]:
    limits = Limits(slots=4, n=4, read_together=2)
    with running(seewhen.load(checkpoint, device="cpu"), limits=limits, fast="graph") as started:
        yield started


def lanes(server: Running) -> int:
    return len(server.engine.company.lanes.lanes)


def test_concurrent_answers_equal_those_of_batches(server: Running, joining: Running) -> None:
    """Methods, lengths, temperatures, seeds and numbers of answers in all mixtures; one client and many."""
    expected = [ask(server, case) for case in CASES]
    assert [ask(joining, case) for case in CASES] == expected
    order = list(range(len(CASES)))
    random.Random(0).shuffle(order)
    with ThreadPoolExecutor(8) as pool:
        found = dict(zip(order, pool.map(lambda k: ask(joining, CASES[k]), order), strict=True))
    assert [found[k] for k in range(len(CASES))] == expected
    assert lanes(joining) >= 3  # cai, vcd, regular


def test_an_answer_joins_one_that_runs(serving: Callable[..., Any]) -> None:
    """It does not wait for its end, as a batch of the other way would."""
    with serving(fast="graph", limits=Limits(slots=2, n=1)) as server:
        long = {"messages": question("w5 w6", 1), "max_tokens": 600, "temperature": 0, "stream": True}
        stream = iter(server.client().chat.completions.create(model=MODEL, **long))
        next(stream)
        answer = ask(server, {"messages": question("w7", 2), "max_tokens": 3, "temperature": 0})
        assert answer and server.engine.company.busy, "the long one still runs"
        stream.close()  # type: ignore[attr-defined]


def test_log_probabilities_bias_and_facts_equal(server: Running, joining: Running) -> None:
    tilting = {"method": "cai", "parameters": {"start_layer": 1, "threshold": 0.0}}
    case = {
        "messages": question("w5 w6", 1),
        "max_tokens": 6,
        "temperature": 0.7,
        "seed": 3,
        "logprobs": True,
        "top_logprobs": 3,
        "logit_bias": {"40": 2.5, "41": -3},
        "extra_body": {"seewhen": tilting},
    }

    def told(running: Running) -> Any:
        answer = running.client().chat.completions.create(model=MODEL, **case)
        (choice,) = answer.choices
        assert choice.logprobs is not None and choice.logprobs.content is not None
        entries = [(e.token, e.logprob, [t.token for t in e.top_logprobs]) for e in choice.logprobs.content]
        return choice.message.content, choice.seewhen["fired"], answer.usage, entries

    (text, fired, usage, entries), (text_, fired_, usage_, entries_) = told(server), told(joining)
    assert (text, fired, usage) == (text_, fired_, usage_) and fired["tokens"] == 6
    for (token, value, best), (token_, value_, best_) in zip(entries, entries_, strict=True):
        assert (token, best) == (token_, best_) and abs(value - value_) < 1e-3


def test_stop_strings_and_streams(server: Running, joining: Running) -> None:
    case = {"messages": question("w5 w6", 1), "max_tokens": 12, "temperature": 0}
    (whole,) = ask(server, case)
    stop = whole.split()[5]
    pieces = list(joining.client().chat.completions.create(model=MODEL, **case, stop=stop, stream=True))
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == whole[: whole.index(stop)].rstrip()
    assert pieces[-1].choices[0].finish_reason == "stop"


def test_what_does_not_join_runs_between(joining: Running) -> None:
    """Traces, beams and words left out go the other way, while others are in the middle of their answers."""
    alone = {"messages": question("w5 w6", 1), "max_tokens": 4, "temperature": 0}
    plain = ask(joining, alone)
    others = [{"trace": True}, {"num_beams": 2}]
    with ThreadPoolExecutor(8) as pool:
        long = {"messages": question("w7", 2), "max_tokens": 60, "temperature": 0}
        expected = ask(joining, long)
        running = [pool.submit(ask, joining, long) for _ in range(3)]
        between = [pool.submit(ask, joining, {**alone, "extra_body": {"seewhen": asked}}) for asked in others]
        assert between[0].result() == plain and between[1].result()
        assert [each.result() for each in running] == [expected] * 3


def test_who_hangs_up_makes_room(serving: Callable[..., Any]) -> None:
    with serving(fast="graph", limits=Limits(slots=1, n=1)) as server:
        long = {"messages": question("w5 w6", 1), "max_tokens": 900, "temperature": 0, "stream": True}
        stream = server.client().chat.completions.create(model=MODEL, **long)
        next(iter(stream))
        stream.close()
        assert ask(server, {"messages": question("w7", 2), "max_tokens": 3, "temperature": 0})
        until(lambda: not server.engine.company.busy)
        assert counted(server, "cancelled_total") == 1


def test_a_prompt_that_fails_harms_nobody(serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are read with it are read again, one by one; those that run go on."""
    read = Company.join

    def fussy(self: Company, prompt: Prompt) -> None:
        if any("w99" in job.prompt for job in prompt.jobs):
            raise RuntimeError("on purpose")
        read(self, prompt)

    cases = [{"messages": question(f"w{n}", 1), "max_tokens": 4, "temperature": 0} for n in (5, 99, 6, 7)]
    with serving(fast="graph", limits=Limits(slots=4, n=1, read_together=4)) as server:
        expected = [ask(server, case) for case in cases]
        monkeypatch.setattr(Company, "join", fussy)
        with ThreadPoolExecutor(4) as pool:
            found = [pool.submit(ask, server, case) for case in cases]
        assert [each.result() for n, each in enumerate(found) if n != 1] == [expected[n] for n in (0, 2, 3)]
        assert "500" in str(found[1].exception())


def test_a_step_that_fails_ends_its_lane_alone(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from seewhen.decoding.fast.lane import Lane

    with serving(fast="graph", limits=Limits(slots=4, n=1)) as server:
        case = {"messages": question("w5", 1), "max_tokens": 4, "temperature": 0}
        expected = ask(server, case)
        advance = Lane.advance

        def failing(self: Lane) -> None:
            if self.session.method.name == "vcd":
                raise RuntimeError("on purpose")
            advance(self)

        monkeypatch.setattr(Lane, "advance", failing)
        vcd = {**case, "extra_body": {"seewhen": {"method": "vcd"}}}
        with ThreadPoolExecutor(2) as pool:
            bad, good = pool.submit(ask, server, vcd), pool.submit(ask, server, case)
        assert good.result() == expected and "500" in str(bad.exception())
        monkeypatch.undo()
        assert ask(server, vcd), "a new lane takes its place"


def test_more_answers_than_slots_go_the_other_way(serving: Callable[..., Any]) -> None:
    case = {"messages": question("w5", 1), "max_tokens": 3, "temperature": 1, "seed": 1, "n": 3}
    with serving(fast="graph", limits=Limits(slots=2)) as server:
        assert len(ask(server, case)) == 3
        assert lanes(server) == 0


def test_who_takes_what(joining: Running) -> None:
    company = joining.engine.company

    def job(**changes: Any) -> Job:
        from seewhen.server.sampling import Sampling

        method = seewhen.method(changes.pop("method", "cai:start_layer=1"))
        given = {"sampling": Sampling(0.0, 1.0, 0), "n": 1, "max_tokens": 4, "deadline": 0.0, **changes}
        return Job("a", "w1", (), method, method.fingerprint, post=lambda event: None, **given)

    assert company.takes(job()) and company.takes(job(method="vcd")) and company.takes(job(runners=2))
    for other in ({"trace": True}, {"num_beams": 2}, {"method": "sid"}, {"method": "opera"}):
        assert not company.takes(job(**other)), other
