"""A server in front of another: how long it waits, whom it gives up for, and with what it asks."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx2
import pytest
from loopback import until
from proxies import METHOD, proxying
from stranger import Stranger, about_an_image

import seewhen
from seewhen.served.server import Meter
from seewhen.server.fetching import Fetcher
from seewhen.server.limits import Limits
from seewhen.server.proxy import UpstreamModels
from seewhen.server.settings import Settings


def test_a_server_that_hangs_is_not_waited_for(stranger: Stranger) -> None:
    stranger.behaviour = "hang"
    with proxying(stranger.url, limits=Limits(wall_seconds=1)) as proxy:
        for body in ({}, about_an_image()):
            reply = httpx2.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
            assert reply.status_code == 504 and reply.json()["error"]["code"] == "upstream_too_slow"
        stranger.held.set()


def test_who_waits_for_what_another_finds_out_is_not_forgotten(stranger: Stranger) -> None:
    """The first request asks what the server offers, which hangs; the others wait no longer than they may."""
    stranger.behaviour = "hang"
    with proxying(stranger.url, limits=Limits(wall_seconds=2)) as proxy, ThreadPoolExecutor(4) as clients:
        url, body = f"{proxy.url}/v1/chat/completions", about_an_image()
        asked = [clients.submit(httpx2.post, url, json=body, timeout=60) for _ in range(4)]
        assert [each.result().status_code for each in asked] == [504] * 4
        stranger.held.set()


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_client_that_goes_frees_the_other_server(stranger: Stranger, path: str) -> None:
    stranger.behaviour = "wait_for_the_end"
    with proxying(stranger.url) as proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        body = json.dumps(about_an_image()).encode()
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(body)}\r\n"
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
            until(lambda: bool(stranger.seen))
            assert not stranger.left.is_set()
        assert stranger.left.wait(60)


def test_what_is_found_out_is_found_out_with_the_requests_options(stranger: Stranger) -> None:
    stranger.behaviour = "nonsense"
    with proxying(stranger.url, extras={"service_tier": "flex", "user": "nobody"}) as proxy:
        body = about_an_image(add_special_tokens=True, user="me", presence_penalty=1.0)
        httpx2.post(f"{proxy.url}/v1/chat/completions", json=body, timeout=60)
    assert stranger.asked
    for asked in stranger.asked:
        assert asked["add_special_tokens"] is True and "presence_penalty" not in asked
        assert asked["user"] == "me" and asked["service_tier"] == "flex"


def test_other_options_are_found_out_anew(stranger: Stranger) -> None:
    limits = Limits()
    known = UpstreamModels(stranger.url, Settings(seewhen.method(METHOD), limits, Fetcher.of([], limits)))
    plain, shaped = known.remote("m", ""), known.remote("m", "", {"add_special_tokens": True})
    assert plain is not shaped and plain.server is shaped.server
    assert known.remote("m", "", {"add_special_tokens": True}) is shaped and known.remote("m", "") is plain
    known.close()


def test_a_server_that_is_asked_is_not_forgotten(stranger: Stranger) -> None:
    stranger.behaviour, limits = "hang", Limits()
    known = UpstreamModels(stranger.url, Settings(seewhen.method(METHOD), limits, Fetcher.of([], limits)))
    mine = known.remote("m", "mine").server
    waiting = mine.start([about_an_image()], Meter())
    for number in range(100):
        known.remote("m", f"key-{number}")
    assert mine.busy and not waiting.done() and known.remote("m", "mine").server is mine
    assert len(known._servers) <= 65
    known.close()
    assert waiting.cancelled()


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_a_key_that_cannot_be_sent_is_not_told(stranger: Stranger, path: str) -> None:
    with proxying(stranger.url) as proxy:
        headers = [(b"Authorization", "Bearer sk-secrét".encode()), (b"Content-Type", b"application/json")]
        body = json.dumps(about_an_image()).encode()
        reply = httpx2.post(f"{proxy.url}/v1/{path}", content=body, headers=headers, timeout=60)
    assert reply.status_code == 401 and "secr" not in reply.text and not stranger.seen


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_the_environments_proxy_is_used_for_everything(
    stranger: Stranger, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger.behaviour = "angry"
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, stranger.url.removesuffix("/v1"))
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with proxying("http://models.invalid/v1") as proxy, httpx2.Client(trust_env=False, timeout=60) as client:
        assert client.post(f"{proxy.url}/v1/{path}", json=about_an_image()).status_code == 401
    assert {asked for _, asked, _, _ in stranger.seen} == {f"http://models.invalid/v1/{path}"}
