"""The official client against a real server."""

from __future__ import annotations

import asyncio
import math

import openai
import pytest
from loopback import MODEL, Running, picture, question

import seewhen
from seewhen.backbones.loading import Loaded

GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 12}


def ask(server: Running, text: str = "w5 w6 w7", *seeds: int, **options):
    return server.client().chat.completions.create(
        **{**GREEDY, "messages": question(text, *(seeds or (1,)))} | options
    )


def streamed(server: Running, **options) -> tuple[str, list]:
    chunks = list(ask(server, stream=True, **options))
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks


def test_models(server: Running) -> None:
    client = server.client()
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


@pytest.mark.parametrize("method", ["regular", "cai", "vcd", "pai"])
def test_greedy_answer_is_the_librarys(server: Running, loaded: Loaded, method: str) -> None:
    answer = ask(server, "w5 w6", 3, extra_body={"seewhen": {"method": method}})
    expected = seewhen.generate(
        *loaded, picture(3), "w5 w6", method, max_new_tokens=12, do_sample=False, num_beams=1
    )
    assert answer.choices[0].message.content == expected.text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.prompt_tokens == expected.trace.prompt_length
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    fired = answer.choices[0].seewhen["fired"]
    assert fired == ({"tokens": expected.trace.fired_tokens()[0], "of": 12} if method in ("cai", "pai") else None)


def test_streamed_text_is_the_whole_text(server: Running) -> None:
    text, chunks = streamed(server, stream_options={"include_usage": True})
    whole = ask(server)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage == whole.usage
    text, chunks = streamed(server)
    assert all(chunk.choices for chunk in chunks)  # who asks for no usage gets no chunk without a choice


def test_streamed_text_is_not_held_back_to_the_end(server: Running) -> None:
    """With a trace each token is a piece of its own; other text that waits for a busy loop goes in one piece."""
    _, chunks = streamed(server, extra_body={"seewhen": {"trace": True}})
    assert len([c for c in chunks if c.choices[0].delta.content is not None]) >= 12


def test_async_client_streams(server: Running) -> None:
    async def pieces() -> str:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.chat.completions.create(**GREEDY, messages=question("w5 w6 w7", 1), stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(pieces()) == ask(server).choices[0].message.content


def test_several_images_and_turns(server: Running) -> None:
    one, two = ask(server, "w5", 1), ask(server, "w5", 1, 2)
    assert two.usage.prompt_tokens == one.usage.prompt_tokens + 16
    assert two.choices[0].message.content != ask(server, "w5", 2, 1).choices[0].message.content
    earlier = [
        {"role": "developer", "content": "w9"},
        *question("w5", 1),
        {"role": "assistant", "content": [{"type": "text", "text": "w8"}]},
        {"role": "user", "content": "w7"},
    ]
    longer = server.client().chat.completions.create(**GREEDY, messages=earlier)
    assert longer.usage.prompt_tokens > one.usage.prompt_tokens


def test_an_answer_goes_back_as_it_came(server: Running) -> None:
    """The client's own message, the dictionary it makes of it, and what its helpers for streams add to that."""
    message = ask(server).choices[0].message
    told = message.model_dump()
    assert told.keys() > {"role", "content", "refusal", "tool_calls"}
    plain, *others = (
        server.client().chat.completions.create(
            **GREEDY, messages=[*question("w5", 1), one, {"role": "user", "content": "w7"}]
        )
        for one in (
            {"role": "assistant", "content": message.content},
            message,
            told,
            {**told, "parsed": None, "tool_calls": []},
        )
    )
    assert all(other.choices == plain.choices for other in others)


def test_text_alone_passes_through_with_a_note(server: Running) -> None:
    answer = server.client().chat.completions.create(**GREEDY, messages=[{"role": "user", "content": "w5 w6"}])
    assert answer.choices[0].message.content
    assert "No image in the prompt" in answer.seewhen["notes"][0]


def test_sampling_repeats_with_its_seed(server: Running) -> None:
    warm = {"temperature": 1.0, "n": 4, "max_tokens": 8}

    def texts(**options) -> list[str]:
        return [choice.message.content for choice in ask(server, **warm | options).choices]

    first = texts(seed=7)
    assert texts(seed=7) == first
    assert texts(seed=8) != first
    assert len(set(first)) > 1
    free = ask(server, **warm)
    assert texts(seed=free.seewhen["seed"]) == [choice.message.content for choice in free.choices]
    # A tiny nucleus holds one token only, and a cold temperature leaves one: both are greedy.
    greedy = ask(server, max_tokens=8).choices[0].message.content
    assert texts(seed=1, top_p=1e-6) == texts(seed=1, temperature=1e-5) == [greedy] * 4


def test_stop_strings(server: Running) -> None:
    whole = ask(server).choices[0].message.content.split(" ")
    stop = whole[5] + " " + whole[6]
    for options in ({"stop": stop}, {"stop": ["never", stop]}):
        answer = ask(server, **options)
        assert answer.choices[0].message.content == " ".join(whole[:5])
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens == 7
        assert streamed(server, **options)[0] == " ".join(whole[:5])


def test_log_probabilities(server: Running) -> None:
    answer = ask(server, logprobs=True, top_logprobs=3, max_completion_tokens=5)
    entries = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content
    for entry in entries:
        best = entry.top_logprobs
        assert len(best) == 3
        assert best[0].token == entry.token and best[0].logprob == entry.logprob  # greedy
        assert best[0].logprob >= best[1].logprob >= best[2].logprob
        assert sum(math.exp(one.logprob) for one in best) <= 1.0 + 1e-6
        assert bytes(entry.bytes).decode() == entry.token
    chunks = list(ask(server, logprobs=True, top_logprobs=3, max_completion_tokens=5, stream=True))
    told = [e for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert told == entries
    assert ask(server).choices[0].logprobs is None
    assert ask(server, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_trace_on_request(server: Running) -> None:
    body = {"seewhen": {"method": "cai", "parameters": {"start_layer": 2, "threshold": 0.0}, "trace": True}}
    answer = ask(server, "w5", 1, 2, max_tokens=4, extra_body=body)
    trace = answer.choices[0].seewhen["trace"]
    assert trace["text"] == answer.choices[0].message.content
    assert trace["tilted_layers"] == [3] and trace["fired"] == {"tokens": 4, "of": 4}
    assert len(trace["tokens"]) == len(trace["maps"]["relevance"]) == 4
    assert [grid["image"] for grid in trace["maps"]["grids"]] == [0, 1]
    assert answer.seewhen["method"]["parameters"]["start_layer"] == 2
    chunks = list(ask(server, "w5", 1, 2, max_tokens=4, extra_body=body, stream=True))
    told = [chunk.choices[0].model_extra.get("seewhen", {}) for chunk in chunks]
    live = [token for facts in told for token in facts.get("tokens", [])]
    assert [token["id"] for token in live] == [token["id"] for token in trace["tokens"]]
    assert [token["relevance"] for token in live] == trace["maps"]["relevance"]
    assert [token["fired"] for token in live] == [token["fired"] for token in trace["tokens"]]
    assert chunks[-1].choices[0].seewhen["trace"] == trace


def test_methods_that_decode_in_their_own_way(server: Running) -> None:
    opera = ask(server, max_tokens=6, extra_body={"seewhen": {"method": "opera", "num_beams": 2}})
    assert len(opera.choices[0].message.content.split(" ")) == 6
    again, _ = streamed(server, max_tokens=6, extra_body={"seewhen": {"method": "opera", "num_beams": 2}})
    assert again == opera.choices[0].message.content
    beams = ask(server, max_tokens=6, extra_body={"seewhen": {"num_beams": 3}})
    assert beams.usage.completion_tokens == 6
    saliency = {"extra_body": {"seewhen": {"method": "saliency"}}, "temperature": 1, "seed": 5, "max_tokens": 6}
    assert ask(server, **saliency).choices[0].message.content == ask(server, **saliency).choices[0].message.content
    for options in (
        {"temperature": 1, "extra_body": {"seewhen": {"method": "opera"}}},
        {"n": 2, "extra_body": {"seewhen": {"num_beams": 2}}},
        {"logprobs": True, "extra_body": {"seewhen": {"num_beams": 2}}},
        {"extra_body": {"seewhen": {"method": "opera", "num_beams": 1}}},
        {"temperature": 0, "extra_body": {"seewhen": {"method": "saliency"}}},
        {"temperature": 1, "extra_body": {"seewhen": {"method": "saliency", "num_beams": 2}}},
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(server, **options)
        assert refused.value.code == "unsupported_combination"


def test_default_method_is_kept_where_a_request_is_silent(server: Running) -> None:
    default = server.settings.method
    assert ask(server).seewhen["fingerprint"] == default.fingerprint
    changed = ask(server, extra_body={"seewhen": {"parameters": {"strength": 2}}})
    assert changed.seewhen["fingerprint"] == default.replace(strength=2.0).fingerprint
    preset = ask(server, extra_body={"seewhen": {"preset": "reference", "parameters": {"start_layer": 1}}})
    assert preset.seewhen["method"]["parameters"]["relevance"] == "shifted"
    assert preset.seewhen["method"]["parameters"]["entropy_base"] == 10.0
