"""What other engines offer, by their names: words left out, biased tokens, answers that go on, stops kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import openai
import pytest
from loopback import MODEL, Running, question

GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 12}
PLAIN = {"seewhen": {"method": "regular"}}


def ask(server: Running, messages: Any = None, extra: dict[str, Any] | None = None, **options: Any) -> Any:
    options = {**GREEDY, "messages": messages or question("w5 w6 w7", 1), **options}
    return server.client().chat.completions.create(extra_body={**PLAIN, **(extra or {})}, **options).choices[0]


def test_tokens_joined_are_the_text(server: Running) -> None:
    answer = ask(server, logprobs=True, top_logprobs=20)
    assert "".join(each.token for each in answer.logprobs.content) == answer.message.content
    for each in answer.logprobs.content:
        assert each.token in [likely.token for likely in each.top_logprobs]


def test_an_answer_goes_on_from_any_of_its_words(server: Running) -> None:
    whole = ask(server).message.content
    words = whole.split()
    for count in (1, 5, 11):
        begun = [*question("w5 w6 w7", 1), {"role": "assistant", "content": " ".join(words[:count])}]
        extra = {"continue_final_message": True, "add_generation_prompt": False}
        rest = ask(server, begun, extra, max_tokens=12 - count)
        assert " ".join(words[:count]) + rest.message.content == whole


def test_a_stop_string_stays_if_wanted_and_is_named(server: Running) -> None:
    words = ask(server).message.content.split()
    stop = words[4]
    kept = ask(server, extra={"include_stop_str_in_output": True}, stop=[stop])
    cut = ask(server, stop=[stop])
    before = " ".join(words[: words.index(stop)])
    assert kept.message.content == f"{before} {stop}".strip() and cut.message.content == before
    assert kept.stop_reason == cut.stop_reason == stop and kept.finish_reason == "stop"
    assert ask(server).stop_reason is None


def test_bad_words_are_not_written(server: Running) -> None:
    words = ask(server).message.content.split()
    answer = ask(server, extra={"bad_words": [words[0], words[3]]}, logprobs=True, top_logprobs=2)
    found = answer.message.content.split()
    assert not {words[0], words[3]} & set(found)
    # The first place shows what was left out, with its own probability: what is told is not changed.
    best = answer.logprobs.content[0].top_logprobs
    assert best[0].token == words[0] and best[1].token == found[0]
    assert math.isclose(best[1].logprob, answer.logprobs.content[0].logprob)


def test_bad_words_of_several_tokens(server: Running) -> None:
    words = ask(server).message.content.split()
    found = ask(server, extra={"bad_words": [" ".join(words[:3])]}).message.content.split()
    assert found[:2] == words[:2] and found[2] != words[2]


def test_biased_tokens(server: Running) -> None:
    tokenizer = server.engine.prompter.tokenizer
    token = tokenizer.convert_tokens_to_ids("w9")
    assert ask(server, logit_bias={str(token): 100}).message.content == " ".join(["w9"] * 12)
    first = ask(server).message.content.split()[0]
    gone = ask(server, logit_bias={str(tokenizer.convert_tokens_to_ids(first)): -100})
    assert first not in gone.message.content.split()


@pytest.mark.parametrize("fast", ["off", "graph"])
def test_numbers_of_tokens_are_told_when_asked_for(serving: Callable[..., Any], fast: str) -> None:
    """Those of the text, as many as there are log-probabilities; whole and in pieces."""
    asked: dict[str, Any] = {"return_token_ids": True}
    with serving(fast=fast) as server:
        tokenizer = server.engine.prompter.tokenizer
        whole = ask(server, extra=asked, logprobs=True)
        assert tokenizer.decode(whole.token_ids) == whole.message.content
        assert len(whole.token_ids) == len(whole.logprobs.content)
        assert ask(server).token_ids is None
        ended = ask(server, extra=asked, logit_bias={str(tokenizer.eos_token_id): 100}, logprobs=True)
        assert ended.token_ids == [] and ended.finish_reason == "stop"
        options = {**GREEDY, "messages": question("w5 w6 w7", 1), "stream": True, "extra_body": {**PLAIN, **asked}}
        pieces = [p.choices[0] for p in server.client().chat.completions.create(**options) if p.choices]
        told = [number for piece in pieces for number in getattr(piece, "token_ids", None) or ()]
        assert told == whole.token_ids
        assert "".join(piece.delta.content or "" for piece in pieces) == whole.message.content


def test_min_p_of_one_is_greedy(server: Running) -> None:
    hot: dict[str, Any] = {"temperature": 2, "seed": 3}
    assert ask(server, extra={"min_p": 1.0}, **hot).message.content == ask(server).message.content
    assert ask(server, **hot).message.content != ask(server).message.content


@pytest.mark.parametrize("option", [{"logit_bias": {"5": 1}}, {"bad_words": ["w5"]}, {"min_p": 0.1}])
def test_what_a_beam_search_does_not_take(server: Running, option: dict[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError) as told:
        ask(server, extra={"seewhen": {"method": "opera"}, **option})
    assert told.value.param == next(iter(option))
