"""Odds from the likeliest tokens: exact where all are told, and within their bounds where some are not."""

from __future__ import annotations

import json
import math
import time

from hypothesis import given
from hypothesis import strategies as st

from seewhen.served.odds import odds_of
from seewhen.served.replies import Likely, read_reply

FORMS = ["Yes", "yes", " Yes", " yes", "No", "no", " No", " no"]


def likely(scores: list[float], most: int) -> tuple[list[Likely], float]:
    """The `most` likeliest of a vocabulary that begins with the answers, and the true log-odds."""
    total = math.log(sum(map(math.exp, scores)))
    names = [*FORMS, *(f"w{number}" for number in range(len(scores) - len(FORMS)))]
    all_of = sorted((Likely(n, s - total) for n, s in zip(names, scores, strict=True)), key=lambda e: -e.log_prob)
    yes, no = (math.log(sum(map(math.exp, part))) for part in (scores[:4], scores[4:8]))
    return all_of[:most], yes - no


@given(st.lists(st.floats(-8, 8), min_size=12, max_size=40), st.sampled_from([5, 20]))
def test_the_truth_lies_within(scores: list[float], most: int) -> None:
    told, truth = likely(scores, most)
    found = odds_of(told)
    if found is None:
        assert not any(each.text.strip().lower() in ("yes", "no") for each in told)
        return
    assert found.low - 1e-6 <= truth <= found.high + 1e-6
    assert found.low <= found.value <= found.high


@given(st.lists(st.floats(-8, 8), min_size=8, max_size=20))
def test_exact_where_everything_is_told(scores: list[float]) -> None:
    told, truth = likely(scores, 20)
    found = odds_of(told)
    assert found is not None and math.isclose(found.value, truth, abs_tol=1e-6) and found.range is None


def test_an_open_end() -> None:
    found = odds_of([Likely("Yes", math.log(0.9)), Likely("Maybe", math.log(0.05))])
    assert found is not None and found.high == math.inf and found.range is not None
    assert found.range[1] is None and math.isclose(found.value, math.log(0.9 / 0.05))
    assert odds_of([Likely("The", -0.1)]) is None and odds_of([]) is None


def test_tokens_get_the_spaces_of_their_text() -> None:
    content = '[{"token":"A","logprob":-1},{"token":"▁dog","logprob":-2},{"token":".","logprob":-3}]'
    body = f'{{"choices":[{{"message":{{"content":" A dog."}},"logprobs":{{"content":{content}}}}}]}}'
    found = read_reply(body.encode())
    assert [piece.text for piece in found.pieces] == [" A", " dog", "."]
    assert [piece.log_prob for piece in found.pieces] == [-1, -2, -3]


def test_long_answers_are_read_in_one_pass() -> None:
    """Copying the rest of the text for every token would take many minutes."""
    words = [f"word{number}" for number in range(200_000)]
    content = [{"token": f" {word}", "logprob": -1} for word in words]
    tokens = [*content, *[{"token": "nothing of it", "logprob": -1}] * 50_000]
    text = " ".join(words) + " " * 1_000_000
    reply = {"choices": [{"message": {"content": text}, "logprobs": {"content": tokens}}]}
    started = time.process_time()
    found = read_reply(json.dumps(reply).encode())
    assert time.process_time() - started < 60
    assert len(found.pieces) == 200_001 and "".join(piece.text for piece in found.pieces) == text
