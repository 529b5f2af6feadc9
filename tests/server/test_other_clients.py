"""What clients other than the official one send, byte for byte, and what health checks and browsers ask."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from loopback import MODEL, Running, data_url, picture, question, running
from proxies import Proxy, proxying
from stranger import about_an_image

import seewhen
from runs.tiny_checkpoint import write
from served.fault_server import Fault, Handler, completion, faulty, says

SMALL = {"model": MODEL, "messages": question("w5", 1), "max_tokens": 2, "temperature": 0}
URL = data_url(picture(1))


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    loaded = seewhen.load(write(tmp_path_factory.mktemp("objects")), device="cpu")
    with running(loaded, method="regular") as behind, proxying(f"{behind.url}/v1") as started:
        yield started


def post(to: Running | Proxy, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{to.url}/v1/chat/completions", json=body, timeout=60)


def error(reply: httpx2.Response, status: int) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    return dict(reply.json()["error"])


# -- requests ----------------------------------------------------------------------------------------------------


LITELLM = {"provider_specific_fields": {"refusal": None}}
LITELLM_DUMPED = {"tool_calls": None, "function_call": None, "provider_specific_fields": None}
HUGGINGFACE_HUB = {"reasoning": None, "tool_call_id": None, "tool_calls": None}


NAMED = {"name": "planner"}  # AutoGen's agents say who speaks, LangChain's and haystack's may


@pytest.mark.parametrize("added", [NAMED, LITELLM, LITELLM_DUMPED, HUGGINGFACE_HUB, {"reasoning_content": None}])
def test_a_message_goes_back_with_what_other_clients_add(server: Running, added: dict[str, Any]) -> None:
    first = post(server, SMALL).json()["choices"][0]["message"]["content"]
    turns = [
        [*question("w5", 1), {"content": first, "role": "assistant", **more}, {"role": "user", "content": "w7"}]
        for more in ({}, added)
    ]
    plain, back = (post(server, {**SMALL, "messages": each}) for each in turns)
    assert plain.status_code == back.status_code == 200
    assert plain.json()["choices"] == back.json()["choices"]


def test_who_speaks_changes_no_answer(server: Running) -> None:
    named = [{**message, **NAMED} for message in question("w5", 1)]
    replies = [post(server, {**SMALL, "messages": each}) for each in (question("w5", 1), named)]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].json()["choices"] == replies[1].json()["choices"]


def test_what_only_litellm_understands_is_not_left_out_silently(server: Running) -> None:
    message = {"role": "assistant", "content": "w8", "provider_specific_fields": {"thinking_blocks": ["w9"]}}
    reply = post(server, {**SMALL, "messages": [*question("w5", 1), message, *question("w7")]})
    assert error(reply, 400)["param"] == "messages.1.provider_specific_fields.thinking_blocks"


@pytest.mark.parametrize(
    "silent",
    [
        {"safety_identifier": "me", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
        {"moderation": None, "prompt_cache_options": None},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
    ],
)
def test_fields_that_say_nothing_of_the_answer_are_accepted(server: Running, silent: dict[str, Any]) -> None:
    assert post(server, {**SMALL, **silent}).status_code == 200


def test_fields_that_would_change_the_answer_are_refused_by_name(server: Running) -> None:
    for name in ("moderation", "prompt_cache_options"):
        found = error(post(server, {**SMALL, name: {"mode": "explicit"}}), 400)
        assert (found["code"], found["param"]) == ("unsupported_parameter", name)
    padded = {"include_usage": True, "include_obfuscation": True}
    assert error(post(server, {**SMALL, "stream_options": padded}), 400)["param"] == (
        "stream_options.include_obfuscation"
    )


@pytest.mark.parametrize(
    ("part", "place"),
    [
        ({"type": "image_url", "image_url": URL}, "messages.0.content.0.image_url"),
        ({"type": "text", "text": 5}, "messages.0.content.0.text"),
        ("w5", "messages.0.content.0"),
    ],
)
def test_a_wrong_part_is_named_and_not_its_message(server: Running, part: Any, place: str) -> None:
    reply = post(server, {**SMALL, "messages": [{"role": "user", "content": [part]}]})
    assert error(reply, 400)["param"] == place


def test_a_packed_body_is_told_as_such(server: Running) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    packed = gzip.compress(json.dumps(SMALL).encode())
    reply = httpx2.post(f"{server.url}/v1/chat/completions", content=packed, headers=headers, timeout=60)
    assert "Content-Encoding" in error(reply, 415)["hint"]
    plain = headers | {"Content-Encoding": "identity"}
    reply = httpx2.post(f"{server.url}/v1/chat/completions", json=SMALL, headers=plain, timeout=60)
    assert reply.status_code == 200


def test_how_to_go_on_with_an_answer_is_told(server: Running) -> None:
    begun = [*question("w5", 1), {"role": "assistant", "content": "w8"}]
    assert "continue_final_message" in error(post(server, {**SMALL, "messages": begun}), 400)["hint"]
    assert post(server, {**SMALL, "messages": begun, "continue_final_message": True}).status_code == 200


@pytest.mark.parametrize("options", [{}, {"logprobs": True}, {"n": 2, "temperature": 1}])
def test_every_piece_says_whether_it_is_the_last(server: Running, options: dict[str, Any]) -> None:
    """OpenAI's have the field, null until the end; `undefined` is not null in JavaScript."""
    body = {**SMALL, "max_tokens": 5, "stream": True, **options}
    lines = post(server, body).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    choices = [choice for line in lines[:-2] for choice in json.loads(line.removeprefix("data: "))["choices"]]
    n = options.get("n", 1)
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - n) + ["length"] * n


# -- in front of another server ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "idle",
    [
        {"logprobs": False, "stop": [], "logit_bias": {}},
        {"tools": [], "tool_choice": "none", "parallel_tool_calls": True},
        {"response_format": {"type": "text"}, "modalities": ["text"]},
        {"prompt_cache_retention": "24h", "safety_identifier": "me"},
    ],
)
def test_fields_that_ask_for_nothing_keep_no_answer_from_being_confirmed(
    proxy: Proxy, idle: dict[str, Any]
) -> None:
    plain, reply = post(proxy, about_an_image(model=MODEL)), post(proxy, about_an_image(model=MODEL, **idle))
    assert reply.status_code == 200 and "x-seewhen-passed" not in reply.headers
    mine, theirs = (each.json()["choices"][0] for each in (reply, plain))
    assert mine["message"] == theirs["message"] and "verdicts" in mine["seewhen"]["told"]


@pytest.mark.parametrize("path", ["models", "models/another"])
def test_what_passes_has_one_of_each_header(proxy: Proxy, path: str) -> None:
    names = [name for name, _ in httpx2.get(f"{proxy.url}/v1/{path}", timeout=60).headers.multi_items()]
    assert "date" in names and len(names) == len(set(names))


@pytest.mark.parametrize("busy", [{"tool_choice": "auto"}, {"response_format": {"type": "json_object"}}])
def test_fields_that_ask_for_something_pass(proxy: Proxy, busy: dict[str, Any]) -> None:
    assert post(proxy, about_an_image(model=MODEL, **busy)).headers["x-seewhen-passed"] in busy


@pytest.mark.parametrize(
    ("fault", "status", "code", "said"),
    [
        (
            says({"error": "Unexpected endpoint. Returning 200 anyway"}),
            502,
            "upstream_failed",
            "Unexpected endpoint",
        ),
        (says({"detail": "no such model"}, 404), 404, "upstream_refused", "answered 404: no such model."),
        (says(b"overloaded", 503, retry_after="0"), 502, "upstream_failed", "answered 503: overloaded."),
        (says({"error": {"message": "too long"}}, 422), 422, "upstream_refused", "answered 422: too long."),
    ],
)
def test_errors_of_another_engine_are_told_in_its_words(fault: Fault, status: int, code: str, said: str) -> None:
    with faulty(fault) as engine, proxying(engine.url) as proxy:
        found = error(post(proxy, about_an_image()), status)
    assert found["code"] == code and said in found["message"] and "127.0.0.1" not in found["message"]


def test_an_engine_that_sees_no_pictures_is_told_as_such() -> None:
    def blind(handler: Handler) -> None:
        pictured = "image_url" in json.dumps(handler.body)
        said = {"error": {"code": 500, "message": "image input is not supported - hint: mmproj"}}
        (says(said, 500) if pictured else says(completion()))(handler)

    with faulty(blind) as engine, proxying(engine.url) as proxy:
        found = error(post(proxy, about_an_image()), 400)
    assert found["code"] == "cannot_confirm" and "takes no images" in found["message"]
    assert "mmproj" in found["message"] and "127.0.0.1" not in found["message"]


# -- health checks, proxies and browsers -------------------------------------------------------------------------


def headers_of(url: str, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
    """Twice on one connection: bytes that do not belong to the answer would spoil the second."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    for _ in range(2):
        connection.request(method, path)
        reply = connection.getresponse()
        body = reply.read()
    connection.close()
    return reply.status, {name.lower(): value for name, value in reply.getheaders()}, body


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/readyz", "/v1/models", f"/v1/models/{MODEL}", "/openapi.json"]
)
def test_head_is_get_without_its_body(server: Running, path: str) -> None:
    varying = ("date", "x-request-id")
    (status, headers, body), (same, theirs, whole) = (headers_of(server.url, m, path) for m in ("HEAD", "GET"))
    assert (status, body) == (same, b"") == (200, b"") and whole
    assert {n: v for n, v in headers.items() if n not in varying} == {
        n: v for n, v in theirs.items() if n not in varying
    }


def test_head_of_what_is_not_there(server: Running) -> None:
    for path, status in (("/v1/models/another", 404), ("/nothing", 404), ("/v1/chat/completions", 405)):
        found, headers, body = headers_of(server.url, "HEAD", path)
        assert (found, body) == (status, b"") and int(headers["content-length"]) > 0


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v1/models"])
def test_head_in_front_of_another_server(proxy: Proxy, path: str) -> None:
    assert headers_of(proxy.url, "HEAD", path)[::2] == (200, b"")


def test_wrong_ways_are_shown_the_right_one(server: Running, proxy: Proxy) -> None:
    """A base URL without /v1, and other APIs of the same maker."""
    for path in ("/chat/completions", "/v1/responses", "/v1/completions", "/v1/v1/chat/completions"):
        found = error(httpx2.post(server.url + path, json={}, timeout=60), 404)
        assert found["code"] == "not_found" and "/v1/chat/completions" in found["message"]
    found = error(httpx2.post(f"{proxy.url}/chat/completions", json={}, timeout=60), 404)
    assert "/v1/chat/completions" in found["message"]
    for to, path in ((server, "/v1/chat/completions"), (proxy, "/healthz")):
        wrong = error(httpx2.request("DELETE", to.url + path, timeout=60), 405)
        assert wrong["hint"] in ("It takes POST.", "It takes GET, HEAD.", "It takes HEAD, GET.")


def test_a_foreign_page_is_told_what_to_do(server: Running) -> None:
    foreign = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST"}
    asked = httpx2.request("OPTIONS", f"{server.url}/v1/chat/completions", headers=foreign, timeout=60)
    assert error(asked, 403)["hint"]
    assert not [name for name in asked.headers if name.startswith("access-control")]
