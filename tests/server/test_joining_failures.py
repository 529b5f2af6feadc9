"""Continuous batching when something goes wrong or differs: errors inside the model, memory that runs out, clients
that leave while they wait, crowds, prompts with and without pictures. Without a GPU the steps run uncaptured."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from loopback import MODEL, Running, counted, held, question, until
from test_batching import ask

from seewhen.server import company as company_module
from seewhen.server.decoding import Decoder
from seewhen.server.limits import Limits

CAI = {"seewhen": {"method": "cai", "parameters": {"start_layer": 1, "threshold": 0.0}}}
ERRORS = (RuntimeError("on purpose"), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB."))


def cases(count: int, tokens: int = 6, **more: Any) -> list[dict[str, Any]]:
    given = {"max_tokens": tokens, "temperature": 0, **more, "extra_body": CAI | more.get("extra_body", {})}
    return [{"messages": question(f"w5 w{5 + n}", 1), **given} for n in range(count)]


def all_at_once(server: Running, asked: list[dict[str, Any]]) -> list[Any]:
    """The answer of each, or the error that it got."""

    def one(case: dict[str, Any]) -> Any:
        try:
            return ask(server, case)
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(asked)) as pool:
        return list(pool.map(one, asked))


@pytest.mark.parametrize("error", ERRORS, ids=["error", "memory"])
@pytest.mark.parametrize("what", ["reading", "stepping"])
def test_an_error_inside_the_model_leaves_it_usable(
    serving: Callable[..., Any], what: str, error: Exception
) -> None:
    """Half way through a pass. Prompts are read again, one by one; a step that fails ends its answers.
    Afterwards every answer is what it was before."""
    passes = 0

    def fail(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal passes
        hidden = args[0] if args else kwargs["hidden_states"]
        if (hidden.shape[1] > 1) == (what == "reading"):
            passes += 1
            if passes == 2:
                raise error

    with serving(fast="graph", limits=Limits(slots=4, n=2)) as server:
        asked = cases(4)
        expected = [ask(server, case) for case in asked]
        layer = server.engine.decoder.backbone.layers[1]
        hook = layer.register_forward_pre_hook(fail, with_kwargs=True)
        found = all_at_once(server, asked)
        hook.remove()
        wrong = [told for told, right in zip(found, expected, strict=True) if told != right]
        status = "503" if error is ERRORS[1] else "500"
        assert all(status in str(told) for told in wrong), found
        if what == "stepping":
            assert wrong
        else:
            assert len(wrong) <= 1  # if it was read alone
        assert [ask(server, case) for case in asked] == expected
        assert all_at_once(server, asked) == expected


def test_who_does_not_fit_alone_does_not_make_batches_smaller(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, rows = Decoder.run, []

    def small(self: Decoder, jobs: Any) -> None:
        rows.append(len(jobs))
        if len(jobs) > 2 or any("w99" in job.prompt for job in jobs):
            raise ERRORS[1]
        run(self, jobs)

    monkeypatch.setattr(Decoder, "run", small)
    with serving(fast="off", limits=Limits(n=1, batch_rows=4)) as server, ThreadPoolExecutor(5) as pool:
        (told,) = all_at_once(server, [cases(1)[0] | {"messages": question("w99", 1)}])
        assert "503" in str(told) and server.engine._rows == 4
        with held(server.engine):  # one runs, four wait
            found = [pool.submit(ask, server, case) for case in cases(5)]
            until(lambda: len(server.engine._running) + server.engine.waiting == 5)
        assert all(each.result() for each in found)
        assert max(rows) > 2 and server.engine._rows == max(rows) // 2, "so many did not fit together"


def test_who_goes_while_waiting_for_room_is_not_read(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    join = company_module.Company.join

    def noting(self: Any, prompt: Any) -> None:
        read.extend(job.prompt for job in prompt.jobs)
        join(self, prompt)

    monkeypatch.setattr(company_module.Company, "join", noting)
    with serving(fast="graph", limits=Limits(slots=1, n=1)) as server:
        (long,) = cases(1, tokens=900, stream=True)
        running = server.client().chat.completions.create(model=MODEL, **long)
        next(iter(running))
        impatient, patient = ({**cases(1, tokens=3)[0], "messages": question(f"w{n}", 1)} for n in (77, 78))
        assert "timed out" in str(all_at_once(server, [{**impatient, "timeout": 0.5}])[0])
        until(lambda: counted(server, "cancelled_total") == 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(ask, server, patient)
            running.close()  # type: ignore[attr-defined]
            assert waiting.result()
        assert any("w78" in prompt for prompt in read) and not any("w77" in prompt for prompt in read)


def test_prompts_with_and_without_pictures_are_read_together(serving: Callable[..., Any]) -> None:
    with serving(fast="graph", limits=Limits(slots=8, n=2, read_together=4)) as server:
        asked = cases(8)
        for number in range(0, 8, 2):
            asked[number]["messages"] = question(f"w5 w{5 + number}")
        expected = [ask(server, case) for case in asked]
        assert all_at_once(server, asked) == expected


def test_in_a_crowd_pieces_make_the_whole_answer(
    serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, log-probabilities and token ids are held back together, and none is lost or told twice."""
    monkeypatch.setattr(company_module, "_MANY", 1)
    monkeypatch.setattr(company_module, "_PAUSE", 0.2)
    asked = cases(6, tokens=40, temperature=0.8, seed=3)
    for number, case in enumerate(asked):
        case["logprobs"] = number % 2 == 0
        case["extra_body"] = CAI | {"return_token_ids": number % 3 == 0}
    together = threading.Barrier(len(asked))

    def whole(server: Running, case: dict[str, Any]) -> Any:
        (choice,) = server.client().chat.completions.create(model=MODEL, **case).choices
        told = [entry.token for entry in choice.logprobs.content or ()] if choice.logprobs else []
        return choice.message.content, told, getattr(choice, "token_ids", None) or []

    def pieces(server: Running, case: dict[str, Any]) -> Any:
        text, told, numbers, count = "", [], [], 0
        together.wait()
        for piece in server.client().chat.completions.create(model=MODEL, **case, stream=True):
            for choice in piece.choices:
                text, count = text + (choice.delta.content or ""), count + 1
                told += [entry.token for entry in (choice.logprobs.content or ())] if choice.logprobs else []
                numbers += getattr(choice, "token_ids", None) or []
        return (text, told, numbers), count

    with serving(fast="graph", limits=Limits(slots=8, n=1)) as server:
        expected = [whole(server, case) for case in asked]
        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(lambda case: pieces(server, case), asked))
        assert [told for told, _ in found] == expected
        assert min(count for _, count in found) < 30, "nothing was held back"
