"""Clients that leave, wait, dawdle; a worker that dies; a server that ends."""

from __future__ import annotations

import ctypes
import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx2
import openai
import pytest
from loopback import MODEL, Running, counted, held, question, raw, until

from seewhen.server.limits import Limits

LONG = {"model": MODEL, "messages": question("w5 w6", 1), "temperature": 0, "max_tokens": 900}
SHORT = {**LONG, "max_tokens": 2}


def generated(server: Running) -> float:
    return counted(server, "generated_tokens_total")


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "cai"},
        {"method": "cai", "trace": True},
        {"method": "vcd"},
        {"method": "opera", "num_beams": 2},
        {"method": "cai", "parameters": {"start_layer": 77}},  # refused by the model
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_batch_is_freed_without_the_garbage_collector(
    server: Running, asked: dict, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The collector may come late, and a cache is large."""
    from transformers import DynamicCache

    made: list[weakref.ref[DynamicCache]] = []
    stock = DynamicCache.__init__

    def counted(self: DynamicCache, *args: Any, **kwargs: Any) -> None:
        made.append(weakref.ref(self))
        stock(self, *args, **kwargs)

    until(lambda: not server.engine._running)
    monkeypatch.setattr(DynamicCache, "__init__", counted)
    gc.disable()
    try:
        with suppress(openai.BadRequestError):
            answer = server.client().chat.completions.create(**SHORT, stream=stream, extra_body={"seewhen": asked})
            if stream:
                list(answer)
        until(lambda: not server.engine._running)
        assert [cache() for cache in made if cache() is not None] == []
        assert made or "start_layer" in asked.get("parameters", {})
    finally:
        gc.enable()


def test_disconnect_cancels(server: Running) -> None:
    answered = server.client().chat.completions.create(**SHORT).choices[0].message.content
    before, cancelled = generated(server), counted(server, "cancelled_total")
    stream = server.client().chat.completions.create(**LONG, stream=True)
    next(iter(stream))
    stream.close()
    until(lambda: generated(server) > before and not server.engine._running)
    assert generated(server) - before < 800  # stopped at the next token, not at the end

    before = generated(server)
    connection = raw(server, LONG)
    until(lambda: bool(server.engine._running))
    connection.close()
    until(lambda: generated(server) > before and not server.engine._running)
    assert generated(server) - before < 800
    until(lambda: counted(server, "cancelled_total") == cancelled + 2)
    assert server.client().chat.completions.create(**SHORT).choices[0].message.content == answered


def test_one_that_leaves_the_queue_is_never_run(server: Running) -> None:
    before = generated(server)
    with ThreadPoolExecutor(1) as pool:
        with held(server.engine):
            running = pool.submit(server.client().chat.completions.create, **SHORT)
            until(lambda: bool(server.engine._running))
            waiting = raw(server, LONG)
            until(lambda: server.engine.waiting == 1)
            waiting.close()
            until(lambda: server.engine.waiting == 0)
        assert running.result().usage.completion_tokens == 2
    until(lambda: not server.engine._running)
    assert generated(server) == before + 2


def test_full_queue(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(queue=1)) as server, ThreadPoolExecutor(2) as pool:
        with held(server.engine):
            first = pool.submit(server.client().chat.completions.create, **{**SHORT, "max_tokens": 3})
            until(lambda: bool(server.engine._running))
            second = pool.submit(server.client().chat.completions.create, **SHORT)
            until(lambda: server.engine.waiting == 1)
            with pytest.raises(openai.RateLimitError) as full:
                server.client().chat.completions.create(**SHORT)
        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["retry-after"]) >= 1
        assert [one.result().usage.completion_tokens for one in (first, second)] == [3, 2]


def test_wall_time(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(wall_seconds=500)) as server:
        began = time.monotonic()
        asked = {**LONG, "stream": True, "stream_options": {"include_usage": True}}
        pieces = iter(server.client().chat.completions.create(**asked))
        assert next(pieces).choices[0].finish_reason is None
        (job,) = server.engine._running
        assert began + 500 <= job.deadline <= time.monotonic() + 500
        job.deadline = 0.0  # as if they were over
        *_, last, usage = pieces
        assert last.choices[0].seewhen["stopped"] == "time"
        assert 0 < usage.usage.completion_tokens < 900


def test_late_turn_is_refused(serving: Callable[..., Any]) -> None:
    with serving() as server, ThreadPoolExecutor(2) as pool:
        with held(server.engine):
            first = pool.submit(server.client().chat.completions.create, **SHORT)
            until(lambda: bool(server.engine._running))
            second = pool.submit(server.client().chat.completions.create, **LONG)
            until(lambda: server.engine.waiting == 1)
            server.engine._queue[0].deadline = 0.0  # as if it had waited for the wall time
        with pytest.raises(openai.RateLimitError) as late:
            second.result()
        assert late.value.code == "queue_timeout" and "retry-after" in late.value.response.headers
        assert first.result().usage.completion_tokens == 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_killed_worker(serving: Callable[..., Any]) -> None:
    with serving() as server, ThreadPoolExecutor(2) as pool:
        assert httpx2.get(f"{server.url}/readyz", timeout=60).status_code == 200
        with held(server.engine):
            first = pool.submit(server.client().chat.completions.create, **LONG)
            until(lambda: bool(server.engine._running))
            second = pool.submit(server.client().chat.completions.create, **LONG)
            until(lambda: server.engine.waiting == 1)
            thread = ctypes.c_ulong(server.engine.thread_id or 0)
            assert ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(SystemExit)) == 1
            for answer in (first, second):
                with pytest.raises(openai.InternalServerError) as dead:
                    answer.result()
                assert dead.value.status_code == 503 and dead.value.code == "model_not_running"
        until(lambda: not server.engine.alive)
        with pytest.raises(openai.InternalServerError) as dead:
            server.client().chat.completions.create(**SHORT)
        assert dead.value.status_code == 503
        for path, status in {"readyz": 503, "healthz": 200}.items():
            assert httpx2.get(f"{server.url}/{path}", timeout=60).status_code == status
        assert 'seewhen_model_up{model="tiny"} 0.0' in httpx2.get(f"{server.url}/metrics", timeout=60).text


def test_one_bad_request_does_not_harm_its_batch(serving: Callable[..., Any]) -> None:
    """A job whose prompt the processor cannot take fails alone."""
    with serving(limits=Limits(n=1, batch_rows=3, batch_wait_ms=60_000)) as server, ThreadPoolExecutor(3) as pool:
        submit = server.engine.submit

        def spoil(job: Any) -> None:
            job.prompt += " <image>" * (job.max_tokens == 3)  # a place without a picture
            submit(job)

        server.engine.submit = spoil  # type: ignore[method-assign]
        answers = [
            pool.submit(server.client().chat.completions.create, **{**SHORT, "max_tokens": tokens})
            for tokens in (2, 3, 4)
        ]
        with pytest.raises(openai.BadRequestError):
            answers[1].result()
        assert [answers[k].result().usage.completion_tokens for k in (0, 2)] == [2, 4]


def test_slow_clients(serving: Callable[..., Any]) -> None:
    limits = Limits(header_seconds=1, read_seconds=1, write_seconds=1, trace_tokens=900)
    with serving(limits=limits, send_buffer=8192) as server:
        address = ("127.0.0.1", server.port)
        silent, headers, body = (socket.create_connection(address) for _ in range(3))
        headers.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        body.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        # One that asks for a stream with traces and reads nothing.
        reader = socket.socket()
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(address)
        asked = {**LONG, "max_tokens": 900, "stream": True, "seewhen": {"trace": True}}
        data = json.dumps(asked).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
        reader.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
        until(lambda: bool(server.engine._running))
        assert (
            httpx2.get(f"{server.url}/healthz", timeout=60).status_code == 200
        )  # all the while it answers others
        for connection in (silent, headers, body):
            connection.settimeout(60)
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
            connection.close()
        until(lambda: not server.engine._running)
        until(lambda: counted(server, "cancelled_total") == 1)
        reader.close()
        assert server.client().chat.completions.create(**SHORT).usage.completion_tokens == 2


def test_engine_closes_with_its_queue_done(serving: Callable[..., Any]) -> None:
    with serving() as own:
        answers: list[int] = []

        def one() -> None:
            answers.append(
                own.client().chat.completions.create(**{**LONG, "max_tokens": 60}).usage.completion_tokens
            )

        threads = [threading.Thread(target=one) for _ in range(3)]
        with held(own.engine):
            for thread in threads:
                thread.start()
            until(lambda: len(own.engine._running) + own.engine.waiting == 3)
            own.engine.close(timeout=0)
            with pytest.raises(openai.InternalServerError) as closed:
                own.client().chat.completions.create(**SHORT)
        own.engine.close()
        assert closed.value.code == "shutting_down"
        for thread in threads:
            thread.join()
        assert answers == [60] * 3


def test_small_pieces_go_out_at_once(server: Running) -> None:
    """Also on a socket that the server was given: else a piece waits for the last one's acknowledgement, 40 ms."""
    with socket.create_connection(("127.0.0.1", server.port)):
        until(lambda: bool(server.server.server_state.connections))
        for connection in list(server.server.server_state.connections):
            opened = connection.transport.get_extra_info("socket")
            assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
