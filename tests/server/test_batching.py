"""Answers do not depend on who shares the batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from loopback import MODEL, Running, counted, held, question, until

from seewhen.server.limits import Limits

CASES = [
    {
        "messages": question("w5 " * (1 + k % 5) + f"w{10 + k}", *range(k % 2 + 1)),
        "max_tokens": 3 + 2 * (k % 4),
        "temperature": 0 if k % 3 else 0.8,
        "top_p": 0.9,
        "seed": k,
        "n": 1 + k % 2,
        "extra_body": {"seewhen": {"method": ("cai", "vcd", "regular")[k % 3]}},
    }
    for k in range(16)
]


def ask(server: Running, case: dict) -> list[str]:
    answer = server.client().chat.completions.create(model=MODEL, **case)
    return [choice.message.content for choice in answer.choices]


def batches(server: Running) -> tuple[int, int]:
    """How many batches ran so far, and their rows."""
    return int(counted(server, "batch_rows_count")), int(counted(server, "batch_rows_sum"))


def test_concurrent_answers_equal_single_ones(server: Running) -> None:
    single = [ask(server, case) for case in CASES]
    before = batches(server)
    order = list(range(len(CASES)))
    random.Random(0).shuffle(order)
    with ThreadPoolExecutor(12) as pool:
        with held(server.engine):
            answers = pool.map(lambda k: ask(server, CASES[k]), order)
            until(lambda: len(server.engine._running) + server.engine.waiting == 12)
        found = dict(zip(order, answers, strict=True))
    assert [found[k] for k in range(len(CASES))] == single
    after = batches(server)
    number, rows = after[0] - before[0], after[1] - before[1]
    assert rows == sum(case["n"] for case in CASES)
    assert number < len(CASES) * 3 / 4, f"{rows} rows ran in {number} batches: nothing was shared"


@pytest.mark.parametrize("stream", [False, True])
def test_short_answers_do_not_wait_for_long_ones(serving: Callable[..., Any], stream: bool) -> None:
    """In one batch, an answer is sent when it is complete."""
    done: list[int] = []
    with serving(limits=Limits(n=1, batch_rows=2, batch_wait_ms=60_000)) as server:  # waits for the second

        def one(tokens: int) -> None:
            options = {"messages": question("w5 w6", 1), "max_tokens": tokens, "temperature": 0}
            answer = server.client().chat.completions.create(model=MODEL, stream=stream, **options)
            if stream:
                list(answer)
            done.append(tokens)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(one, [120, 2]))
        assert batches(server) == (1, 2)
    assert done == [2, 120]


def test_regular_rides_with_a_method_that_tilts(serving: Callable[..., Any]) -> None:
    """One batch with two methods; each answer is what it is alone, and says of itself what its own method did."""
    tilting = {"method": "cai", "parameters": {"start_layer": 1, "threshold": 0.0, "strength": 3.0}}
    cases = [
        {"messages": question("w5 w6", k), "max_tokens": 12, "temperature": 0, "extra_body": {"seewhen": asked}}
        for k in range(3)
        for asked in (tilting, {"method": "regular"})
    ]
    with serving(limits=Limits(n=1, batch_rows=1)) as alone:
        single = [ask(alone, case) for case in cases]
    assert single[0::2] != single[1::2], "the method changes something"
    with serving(limits=Limits(n=1, batch_rows=6, batch_wait_ms=60_000)) as server:  # waits for all six

        def one(case: dict) -> Any:
            return server.client().chat.completions.create(model=MODEL, **case)

        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(one, cases))
        assert batches(server) == (1, 6)
    assert [[answer.choices[0].message.content] for answer in answers] == single
    for answer, case in zip(answers, cases, strict=True):
        asked = case["extra_body"]["seewhen"]["method"]
        assert answer.seewhen["method"]["method"] == asked and answer.seewhen["notes"] == []
        fired = answer.choices[0].seewhen["fired"]
        assert fired == (None if asked == "regular" else {"tokens": 12, "of": 12})


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"method": "regular"}, {"method": "vcd"}),  # it has rows of its own
        ({"method": "cai"}, {"method": "cai", "parameters": {"strength": 2.0}}),
        ({"method": "regular", "trace": True}, {"method": "cai", "trace": True}),
    ],
)
def test_others_do_not_share(serving: Callable[..., Any], first: dict, second: dict) -> None:
    with serving(limits=Limits(n=1, batch_rows=2, batch_wait_ms=60_000)) as server:
        options = {"messages": question("w5 w6", 1), "max_tokens": 2, "temperature": 0}
        cases = [{**options, "extra_body": {"seewhen": asked}} for asked in (first, second)]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda case: ask(server, case), cases))
        assert batches(server) == (2, 2)
