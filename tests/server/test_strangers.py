"""Strangers that are silent, slow or lying: each is hung up on, and nobody else notices."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from loopback import KEY, MODEL, Here, Running, command, counted, question, running, until

import seewhen
from seewhen.server.connections import places
from seewhen.server.limits import Limits
from seewhen.server.logs import Sparing

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks" / "server"))  # what it imports itself
from server import strangers

CHAT = "POST /v1/chat/completions HTTP/1.1"
SMALL = {"model": MODEL, "messages": question("w5", 1), "max_tokens": 1, "temperature": 0}


@contextmanager
def connected(
    port: int, first: str = "", *headers: str, then: bytes = b"", end: bytes = b"\r\n"
) -> Iterator[socket.socket]:
    """A connection on which a request was begun; without `end` its headers are not complete."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(60)
        if first:
            named = () if any(header.startswith("Host:") for header in headers) else ("Host: localhost",)
            connection.sendall("\r\n".join((first, *named, *headers, "")).encode() + end + then)
        yield connection


def everything(connection: socket.socket) -> bytes:
    """What comes until the other side closes; a reset is an end like any other."""
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data


@pytest.fixture(scope="module")
def keyed(checkpoint: Path) -> Iterator[Running]:
    with running(seewhen.load(checkpoint, device="cpu"), key=KEY) as started:
        yield started


@pytest.mark.parametrize(
    ("first", "header", "status"),
    [
        (CHAT, "X: no key", 401),
        (CHAT, "Host: evil.example", 421),
        (CHAT, "Origin: https://evil.example", 403),
        (CHAT, f"Authorization: Bearer {KEY}", 415),
        ("POST /nothing HTTP/1.1", f"Authorization: Bearer {KEY}", 404),
        ("PUT /v1/models HTTP/1.1", f"Authorization: Bearer {KEY}", 405),
        ("GET /v1/models HTTP/1.1", f"Authorization: Bearer {KEY}", 200),
        ("GET /healthz HTTP/1.1", "X: a probe with a body", 200),
        ("GET / HTTP/1.1", "X: a page with a body", 200),
    ],
)
@pytest.mark.parametrize("length", ["Content-Length: 1000", "Transfer-Encoding: chunked"])
def test_a_reply_before_the_body_ends_the_connection(
    keyed: Running, first: str, header: str, status: int, length: str
) -> None:
    """Nobody waits for a body that nobody reads."""
    with connected(keyed.port, first, header, length, then=b"1") as stranger:
        answer = everything(stranger)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()) and b"connection: close" in answer.lower()


def test_a_connection_is_used_again(server: Running) -> None:
    """Also after a refusal, where the request was read."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.connect()
    used = connection.sock
    for body, status in ((b"{}", 400), (json.dumps(SMALL).encode(), 200), (b"[", 400)):
        connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == status and response.read()
        assert connection.sock is used
    connection.close()


def test_whoever_does_not_take_the_end_of_an_answer_is_cut_off(serving: Callable[..., Any]) -> None:
    """The rest of a complete answer waits in the server, and an orderly close would wait with it."""
    with serving(limits=Limits(write_seconds=1), send_buffer=4096) as server:
        greedy = socket.socket()
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        greedy.connect(("127.0.0.1", server.port))
        greedy.sendall(b"GET /v1/methods HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        until(lambda: bool(server.server.server_state.connections))
        until(lambda: not server.server.server_state.connections)
        greedy.settimeout(60)
        head, _, body = everything(greedy).partition(b"\r\n\r\n")
        announced = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        assert len(body) < int(announced.split(b":")[1])
        greedy.close()


def test_newcomers_take_the_place_of_the_silent(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(connections=8)) as server, ExitStack() as stack:
        guest = http.client.HTTPConnection("127.0.0.1", server.port)

        def ask() -> int:
            guest.request("POST", "/v1/chat/completions", json.dumps(SMALL), {"Content-Type": "application/json"})
            response = guest.getresponse()
            response.read()
            return response.status

        assert ask() == 200
        used = guest.sock
        upload = (CHAT, "Content-Type: application/json", "Content-Length: 9")
        kinds: list[tuple[tuple[str, ...], bytes]] = [((), b""), ((CHAT,), b""), (upload, b"\r\n{")]
        crowd = [connected(server.port, *kinds[k % 3][0], end=kinds[k % 3][1]) for k in range(40)]
        strangers = [stack.enter_context(one) for one in crowd]
        assert all(everything(stranger) == b"" for stranger in strangers[:32])  # they made room, without a word
        assert len(server.server.server_state.connections) <= 9
        assert ask() == 200 and guest.sock is used  # who had an answer is the last to go
        assert server.client().chat.completions.create(**SMALL).usage.completion_tokens == 1
        guest.close()


def test_half_an_upload_does_not_delay_the_end(serving: Callable[..., Any]) -> None:
    """The end of `serving` waits half as long as an upload may take."""
    json_body = ("Content-Type: application/json", "Content-Length: 1000")
    with ExitStack() as stack:
        with serving() as server:
            silent = stack.enter_context(connected(server.port))
            headers = stack.enter_context(connected(server.port, CHAT, end=b""))
            upload = stack.enter_context(connected(server.port, CHAT, *json_body, then=b"{"))
            until(lambda: len(server.server.server_state.connections) == 3)
            until(lambda: any(one.cycle is not None for one in server.server.server_state.connections))
        assert everything(upload).startswith(b"HTTP/1.1 503")
        assert everything(silent) == everything(headers) == b""


def test_an_upload_that_breaks_off_is_no_failure_of_ours(
    serving: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    with serving() as server:
        json_body = ("Content-Type: application/json", "Content-Length: 1000")
        with connected(server.port, CHAT, *json_body, then=b"{"):
            until(lambda: any(one.cycle is not None for one in server.server.server_state.connections))
        until(lambda: counted(server, "requests_total", path="/v1/chat/completions", status="499") == 1)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.slow
def test_the_command_with_few_open_files(checkpoint: Path, tmp_path: Path) -> None:
    """More silent clients than the process may have files open, then SIGTERM while an answer is on its way."""
    log = tmp_path / "log"
    with command(checkpoint, log, "--temperature", "0", files=200) as served, ExitStack() as stack:
        stranger = stack.enter_context(openai.OpenAI(base_url=served.url, api_key="x"))
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()
        client = stack.enter_context(openai.OpenAI(base_url=served.url, api_key=KEY, max_retries=0))
        for _ in range(300):
            stack.enter_context(connected(served.port))
        for _ in range(50):
            with connected(served.port, "no HTTP") as liar:
                assert everything(liar).startswith(b"HTTP/1.1 400")
        assert [model.id for model in client.models.list()] == [checkpoint.name]
        asked = {**SMALL, "model": served.model, "max_tokens": 60, "stream_options": {"include_usage": True}}
        pieces = iter(client.chat.completions.create(**asked, stream=True))
        next(pieces)
        body = ("Content-Type: application/json", "Content-Length: 1000", f"Authorization: Bearer {KEY}")
        half = stack.enter_context(connected(served.port, CHAT, *body, then=b"{"))
        served.process.send_signal(signal.SIGTERM)
        assert list(pieces)[-1].usage.completion_tokens == 60
        assert served.process.wait(50) in (0, -signal.SIGTERM)  # sooner than the upload's `read_seconds`
        assert everything(half).startswith(b"HTTP/1.1 503")
    written = log.read_text()
    assert len(written) < 12_000 and "Traceback" not in written and "are in use" in written, written[-2000:]


def test_honest_clients_among_strangers(serving: Callable[..., Any]) -> None:
    """The load test in small: every kind of stranger, more of them than there are places."""
    crowd = strangers.Strangers()
    with serving(limits=Limits(connections=60), key=strangers.KEY) as server:
        bodies = [{**SMALL, "messages": question(f"w{5 + number}", number)} for number in range(4)]

        def all_came() -> bool:
            return crowd.opened > 200 and {"HTTP/1.1 401", "HTTP/1.1 421", "HTTP/1.1 400"} <= set(crowd.heard)

        async def scene() -> list[strangers.Honest]:
            end = time.monotonic() + 120
            visits = [asyncio.create_task(crowd.one(server.port, number, end, 0.5)) for number in range(200)]
            rounds = []
            while not all_came():
                assert time.monotonic() < end, crowd
                rounds.append(await strangers.work(Here(server.url), bodies, clients=6, seconds=1))
            for visit in visits:
                visit.cancel()
            await asyncio.gather(*visits, return_exceptions=True)
            return rounds

        rounds = asyncio.run(scene())
        until(lambda: not server.server.server_state.tasks)
    for honest in rounds:
        assert set(honest.statuses) == {"200"} and honest.statuses["200"] >= 6, honest.statuses


def test_chunks_of_a_byte_hold_nobody_up(server: Running) -> None:
    """A chunk costs a hundred times what its byte does: others get their turn in between."""
    chunks = b"1\r\n \r\n" * 120_000 + b"0\r\n\r\n"
    ended, turns = threading.Event(), []

    async def taking_turns() -> None:
        while not ended.is_set():
            turns.append(time.thread_time())  # a busy machine is not the sender's fault
            await asyncio.sleep(0)

    headers = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
    with connected(server.port, CHAT, *headers) as stranger:
        watched = asyncio.run_coroutine_threadsafe(taking_turns(), server.server.servers[0].get_loop())
        try:
            stranger.sendall(chunks)
            assert everything(stranger).startswith(b"HTTP/1.1 400 ")
        finally:
            ended.set()
        watched.result(60)
    longest = max(after - before for before, after in itertools.pairwise(turns))
    assert longest < 0.1 * (turns[-1] - turns[0])


def test_places_follow_the_limit_on_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    from seewhen.server import connections

    for free in (20, 100, 1000, 20_000, 2**20):
        monkeypatch.setattr(connections, "_free_descriptors", lambda free=free: free)
        most, backlog = places(Limits())
        assert most <= Limits().connections and most + 4 * backlog <= free
    assert places(Limits(connections=5))[0] == 5


def test_the_log_is_sparing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from seewhen.server import logs

    logger, sparing = logging.getLogger("a log of its own"), Sparing()
    logger.addFilter(sparing)
    for number in range(500):
        logger.warning("the same with number %d", number)
        logger.warning(f"an entry with values of its own: {number}" if number % 2 else "another")
    assert len(caplog.records) == 30
    monkeypatch.setattr(logs, "_SECONDS", -1.0)  # the minute is over
    logger.warning("the same with number %d", 1)
    assert caplog.records[-1].getMessage().endswith("[960 entries before this one were left out]")
    for number in range(3000):
        logger.warning(f"{number} is a kind of its own")
    assert len(sparing._seen) <= 201


def test_requests_to_a_server_behind_are_logged_for_debugging_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from seewhen.server import logs

    clients = [logging.getLogger(name) for name in logs._CLIENTS]
    for client in clients:
        monkeypatch.setattr(client, "level", logging.NOTSET)
    monkeypatch.setattr(logs, "_LOGGERS", ())
    for level, told in ((logging.DEBUG, True), (logging.INFO, False)):
        monkeypatch.setattr(logging.getLogger(), "level", level)
        for client in clients:
            client.manager._clear_cache()  # type: ignore[attr-defined]
        logs.limit_logs()
        assert [client.isEnabledFor(logging.INFO) for client in clients] == [told] * len(clients)
