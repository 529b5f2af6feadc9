"""A server in front of another: what is confirmed, what passes as it is, and what never gets through."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from loopback import KEY, MODEL, Running, picture, question, running, until
from proxies import METHOD, Proxy, proxying
from stranger import ASK, Stranger, about_an_image

import seewhen
from runs.tiny_checkpoint import write
from seewhen.errors import InvalidInput
from seewhen.server.fetching import Fetcher
from seewhen.server.limits import Limits
from seewhen.server.proxy import UpstreamModels, create_proxy
from seewhen.server.settings import Settings

THEIRS = "the-key-of-the-other-server"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Our own server behind, with a model whose words name objects."""
    loaded = seewhen.load(write(tmp_path_factory.mktemp("objects")), device="cpu")
    with running(loaded, method="regular") as started:
        yield started


@pytest.fixture(scope="module")
def proxy(server: Running) -> Iterator[Proxy]:
    with proxying(f"{server.url}/v1") as started:
        yield started


def ask(to: Any, shown: tuple[int, ...] = (1,), **options: Any) -> Any:
    options = {"temperature": 0, "max_tokens": 24, **options}
    return to.client().chat.completions.create(model=MODEL, messages=question(ASK, *shown), **options)


# -- what is confirmed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_answer_is_the_one_that_the_library_gets(server: Running, proxy: Proxy, seed: int) -> None:
    remote = seewhen.remote(f"{server.url}/v1", MODEL)
    expected = remote.generate(picture(seed), ASK, METHOD, max_new_tokens=24)
    remote.close()
    whole = ask(proxy, (seed,))
    assert expected.told is not None
    told = whole.choices[0].seewhen["told"]
    assert whole.choices[0].message.content == expected.text
    assert {name: told[name] for name in expected.told} == json.loads(json.dumps(expected.told))
    assert told["upstream"]["requests"] >= 1 and whole.usage.prompt_tokens == told["upstream"]["prompt_tokens"]
    chunks = list(ask(proxy, (seed,), stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == expected.text
    assert chunks[-1].usage is not None
    last = chunks[-2].choices[0]
    assert (
        last.finish_reason == whole.choices[0].finish_reason
        and last.seewhen["told"]["verdicts"] == told["verdicts"]
    )


def test_sampled_answers_come_again_with_their_seed(proxy: Proxy) -> None:
    answers = [ask(proxy, temperature=1.0, seed=seed).choices[0].message.content for seed in (7, 7, 8, 9)]
    assert answers[0] == answers[1] and len(set(answers)) > 1


def test_a_request_may_choose_how(proxy: Proxy) -> None:
    marked = ask(proxy, extra_body={"seewhen": {"method": "confirm", "preset": "mark"}}).choices[0]
    assert marked.seewhen["told"]["taken_back"] == []
    for method in ("cai", "confirm:lexicon=/etc/passwd", "no-such-method"):
        with pytest.raises(openai.BadRequestError) as error:
            ask(proxy, extra_body={"seewhen": {"method": method}})
        assert error.value.code == "invalid_method" and "passwd" not in error.value.message
    with pytest.raises(openai.BadRequestError):
        ask(proxy, extra_body={"seewhen": {"trace": True}})
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        ask(proxy, max_tokens=100_000)


def test_errors_of_the_other_server_are_told(proxy: Proxy) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        proxy.client().chat.completions.create(model="another", messages=question(ASK, 1), max_tokens=4)
    assert "127.0.0.1" not in str(error.value)
    with pytest.raises(openai.APIStatusError) as error:
        ask(proxy, ()).choices  # noqa: B018
        proxy.client().chat.completions.create(model="another", messages=question(ASK), max_tokens=4)
    assert error.value.status_code == 404


def test_many_names_and_keys_take_nothing_from_anybody(server: Running) -> None:
    limits = Limits()
    known = UpstreamModels(f"{server.url}/v1", Settings(seewhen.method(METHOD), limits, Fetcher.of([], limits)))
    mine = known.remote(MODEL, "")
    for number in range(100):
        assert known.remote(f"no-such-{number}", "").server is mine.server
    assert known.remote(MODEL, "").server is mine.server
    assert mine.generate(picture(1), ASK, "regular", max_new_tokens=4).text
    assert known.remote(MODEL, "another key").server is not mine.server
    known.close()


# -- what passes as it is ------------------------------------------------------------------------------------


def test_what_has_no_image_passes(server: Running, proxy: Proxy) -> None:
    body = {"model": MODEL, "messages": question(ASK), "max_tokens": 8, "temperature": 0, "seed": 1}
    direct, passed = (
        httpx2.post(f"{to.url}/v1/chat/completions", json=body, timeout=60) for to in (server, proxy)
    )
    assert passed.headers["x-seewhen-passed"] == "no image" and "x-seewhen-passed" not in direct.headers
    varying = ("id", "created")
    assert {k: v for k, v in direct.json().items() if k not in varying} == {
        k: v for k, v in passed.json().items() if k not in varying
    }
    streamed = [list(ask(to, (), stream=True, seed=1)) for to in (server, proxy)]
    texts = ["".join(c.choices[0].delta.content or "" for c in chunks if c.choices) for chunks in streamed]
    assert texts[0] == texts[1] and texts[0]
    assert [m.id for m in proxy.client().models.list()] == [MODEL]


def test_what_cannot_be_confirmed_passes_and_is_named(proxy: Proxy) -> None:
    for options, why in (({"n": 2}, "n"), ({"logprobs": True}, "logprobs"), ({"stop": ["zzz"]}, "stop")):
        body = {"model": MODEL, "messages": question(ASK, 1), "max_tokens": 4, **options}
        reply = httpx2.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status_code == 200 and reply.headers["x-seewhen-passed"] == why
    body = {"model": MODEL, "messages": question(ASK, 1), "max_tokens": 4, "seewhen": {"method": "regular"}}
    reply = httpx2.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
    assert reply.status_code == 200 and reply.headers["x-seewhen-passed"] == "method regular"


# -- a stranger behind ---------------------------------------------------------------------------------------


def test_paths_headers_and_bodies_pass_byte_for_byte(stranger: Stranger) -> None:
    with proxying(stranger.url) as proxy:
        body = b'{"odd" :  [1,2 ,3], "tools": [{"type":"function"}]}'
        headers = {
            "Content-Type": "application/json",
            "X-Mine": "yes",
            "Cookie": "c=d",
            "Authorization": "Bearer me",
        }
        for method, path in (
            ("POST", "/v1/embeddings?a=%20b&c"),
            ("DELETE", "/v1/files/x%2Fy"),
            ("GET", "/v1/models"),
        ):
            reply = httpx2.request(method, proxy.url + path, content=body, headers=headers, timeout=60)
            seen_method, seen_path, seen, seen_body = stranger.seen[-1]
            assert (seen_method, seen_path, seen_body) == (method, path, body)
            assert seen["x-mine"] == "yes" and "cookie" not in seen and seen["authorization"] == "Bearer me"
            assert (reply.status_code, reply.content) == (418, body)
            assert reply.headers["x-own"] == "theirs" and reply.headers["content-type"] == "application/x-odd"
            assert "set-cookie" not in reply.headers and reply.headers["x-content-type-options"] == "nosniff"
        tools = about_an_image(tools=[{"type": "function", "function": {"name": "f"}}])
        sent = json.dumps(tools).encode()
        reply = httpx2.post(f"{proxy.url}/v1/chat/completions", content=sent, headers=headers, timeout=60)
        assert reply.content == sent and reply.headers["x-seewhen-passed"] == "tools"
        odd = json.dumps(about_an_image(**{"x\r\nSet-Cookie: y": 1})).encode()
        reply = httpx2.post(f"{proxy.url}/v1/chat/completions", content=odd, headers=headers, timeout=60)
        assert reply.content == odd and reply.headers["x-seewhen-passed"] == "a field"
        many = json.dumps({"messages": [0] * 100_000}).encode()
        reply = httpx2.post(f"{proxy.url}/v1/chat/completions", content=many, headers=headers, timeout=60)
        assert reply.content == many
        for number in ("NaN", "1e999"):  # no request of our own could carry it
            none = json.dumps(about_an_image(temperature=1.25)).replace("1.25", number).encode()
            reply = httpx2.post(f"{proxy.url}/v1/chat/completions", content=none, headers=headers, timeout=60)
            assert reply.content == none
        broken = httpx2.post(f"{proxy.url}/v1/chat/completions", content=b"{", headers=headers, timeout=60)
        assert broken.content == b"{"  # the other server says what is wrong with it


def test_nothing_but_the_api_is_reached(stranger: Stranger) -> None:
    with proxying(stranger.url) as proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        for path in ("/", "/admin", "/v1/../admin", "/v1/%2e%2e/admin", "/v1/a/..%2f..%2fadmin", "//v1/models"):
            with socket.create_connection((host, int(port)), timeout=60) as raw:
                raw.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
                raw.settimeout(60)
                assert raw.recv(12) == b"HTTP/1.1 404", path
        assert httpx2.get(f"{proxy.url}/healthz", timeout=60).json() == {"status": "ok"}
        assert b"seewhen_requests" in httpx2.get(f"{proxy.url}/metrics", timeout=60).content
    assert stranger.seen == []


def test_keys_stay_where_they_belong(stranger: Stranger) -> None:
    with proxying(stranger.url, THEIRS, key=KEY) as proxy:
        assert httpx2.get(f"{proxy.url}/v1/models", timeout=60).status_code == 401
        assert not stranger.seen
        httpx2.get(f"{proxy.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
        with pytest.raises(openai.APIStatusError):
            proxy.client(KEY).chat.completions.create(**about_an_image())
    with proxying(stranger.url, None, key=KEY) as proxy:
        httpx2.get(f"{proxy.url}/v1/models", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    assert len(stranger.seen) >= 3
    assert all(KEY not in str(each) for each in stranger.seen)
    given = [headers.get("authorization") for _, _, headers, _ in stranger.seen]
    assert given[-1] is None and set(given[:-1]) == {f"Bearer {THEIRS}"}


def test_no_key_is_logged_or_told(stranger: Stranger, caplog: pytest.LogCaptureFixture) -> None:
    stranger.behaviour = "angry"
    with caplog.at_level(logging.DEBUG, "seewhen.server"), proxying(stranger.url, THEIRS) as proxy:
        reply = httpx2.post(f"{proxy.url}/v1/chat/completions", json=about_an_image(), timeout=60)
    assert reply.status_code == 401 and THEIRS not in reply.text and "127.0.0.1" not in reply.text
    assert THEIRS not in caplog.text


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_redirects_are_not_followed(stranger: Stranger, path: str) -> None:
    stranger.behaviour = "away"
    with proxying(stranger.url, THEIRS) as proxy:
        reply = httpx2.post(f"{proxy.url}/v1/{path}", json=about_an_image(), timeout=60)
    assert reply.status_code == 502 and "location" not in reply.headers and "elsewhere" not in reply.text
    assert all("elsewhere" not in each[1] for each in stranger.seen)


def test_what_breaks_off_is_not_taken_for_whole(stranger: Stranger) -> None:
    stranger.behaviour = "drop"
    with proxying(stranger.url) as proxy, pytest.raises(httpx2.HTTPError):
        httpx2.post(f"{proxy.url}/v1/completions", json={}, timeout=60)


@pytest.mark.parametrize("behaviour", ["drop", "nonsense"])
def test_confirming_a_server_that_fails(stranger: Stranger, behaviour: str) -> None:
    stranger.behaviour = behaviour
    with proxying(stranger.url) as proxy:
        reply = httpx2.post(f"{proxy.url}/v1/chat/completions", json=about_an_image(), timeout=60)
    assert reply.status_code == 502 and reply.json()["error"]["code"] == "upstream_failed"
    assert "127.0.0.1" not in reply.text


def test_nobody_behind() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with proxying(f"http://127.0.0.1:{port}/v1") as proxy:
        for body in ({}, about_an_image()):
            reply = httpx2.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
            assert reply.status_code == 502 and str(port) not in reply.text


def test_events_pass_as_they_come(stranger: Stranger) -> None:
    stranger.behaviour = "events"
    with (
        proxying(stranger.url) as proxy,
        httpx2.stream("POST", f"{proxy.url}/v1/completions", json={}, timeout=60) as reply,
    ):
        pieces = reply.iter_raw()
        assert next(pieces) == b"data: {}\n\n"  # while the other server still holds the rest
        stranger.held.set()
        assert b"".join(pieces) == b"data: [DONE]\n\n"


def test_a_client_that_goes_ends_the_asking(stranger: Stranger) -> None:
    stranger.behaviour = "hang"
    with proxying(stranger.url) as proxy:
        with pytest.raises(httpx2.TimeoutException):
            httpx2.post(f"{proxy.url}/v1/chat/completions", json=about_an_image(), timeout=2)
        until(lambda: "seewhen_cancelled_total 1.0" in proxy.settings.metrics.text())
        stranger.held.set()


def test_what_a_proxy_cannot_be(stranger: Stranger) -> None:
    limits = Limits()
    for url, method in (("ftp://host/v1", METHOD), ("http://u:p@host/v1", METHOD), (stranger.url, "cai")):
        made = Settings(method=seewhen.method(method), limits=limits, fetcher=Fetcher.of([], limits))
        with pytest.raises(InvalidInput):
            create_proxy(url, None, made)
