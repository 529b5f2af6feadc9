"""Clients that leave, wait, dawdle; a worker that dies; a server that ends."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from loopback import MODEL, Running, question

from seewhen.server.limits import Limits

LONG = {"model": MODEL, "messages": question("w5 w6", 1), "temperature": 0, "max_tokens": 900}
SHORT = {**LONG, "max_tokens": 2}


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def generated(server: Running) -> int:
    return sum(
        int(line.rsplit(" ", 1)[1])
        for line in server.settings.metrics.text().splitlines()
        if line.startswith("seewhen_generated_tokens_total{")
    )


def raw(server: Running, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent and nothing read."""
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head.encode() + data)
    return connection


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
def test_a_batch_is_freed_without_the_garbage_collector(server: Running, asked: dict, stream: bool) -> None:
    """The collector may come late, and a cache is large."""
    from transformers import DynamicCache

    gc.collect()
    gc.disable()
    try:
        with suppress(openai.BadRequestError):
            answer = server.client().chat.completions.create(**SHORT, stream=stream, extra_body={"seewhen": asked})
            if stream:
                list(answer)
        until(lambda: not server.engine._running)
        assert [found for found in gc.get_objects() if type(found) is DynamicCache] == []
    finally:
        gc.enable()


def test_disconnect_cancels(server: Running) -> None:
    answered = server.client().chat.completions.create(**SHORT).choices[0].message.content
    before = generated(server)
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
    assert "seewhen_cancelled_total 2" in server.settings.metrics.text()
    assert server.client().chat.completions.create(**SHORT).choices[0].message.content == answered


def test_one_that_leaves_the_queue_is_never_run(server: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(server.client().chat.completions.create, **{**LONG, "max_tokens": 100})
        until(lambda: bool(server.engine._running))
        waiting = raw(server, LONG)
        until(lambda: server.engine.waiting == 1)
        waiting.close()
        until(lambda: server.engine.waiting == 0)
        assert running.result().usage.completion_tokens == 100


def test_full_queue(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(queue=1)) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.client().chat.completions.create, **{**LONG, "max_tokens": 200})
        until(lambda: bool(server.engine._running))
        second = pool.submit(server.client().chat.completions.create, **SHORT)
        until(lambda: server.engine.waiting == 1)
        with pytest.raises(openai.RateLimitError) as full:
            server.client().chat.completions.create(**SHORT)
        assert full.value.code == "queue_full"
        assert int(full.value.response.headers["retry-after"]) >= 1
        assert [one.result().usage.completion_tokens for one in (first, second)] == [200, 2]


def test_wall_time(serving: Callable[..., Any]) -> None:
    with serving(limits=Limits(wall_seconds=1, max_tokens=100_000)) as server:
        server.engine.decoder.context = 100_000  # the tiny model would end too early
        answer = server.client().chat.completions.create(**{**LONG, "max_tokens": 100_000})
        assert answer.choices[0].seewhen["stopped"] == "time"
        assert 0 < answer.usage.completion_tokens < 100_000


def test_late_turn_is_refused(serving: Callable[..., Any]) -> None:
    with serving() as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(server.client().chat.completions.create, **{**LONG, "max_tokens": 150})
        until(lambda: bool(server.engine._running))
        second = pool.submit(server.client().chat.completions.create, **LONG)
        until(lambda: server.engine.waiting == 1)
        server.engine._queue[0].deadline = 0.0  # as if it had waited for the wall time
        with pytest.raises(openai.RateLimitError) as late:
            second.result()
        assert late.value.code == "queue_timeout" and "retry-after" in late.value.response.headers
        assert first.result().usage.completion_tokens == 150


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_killed_worker(serving: Callable[..., Any]) -> None:
    with serving() as server, ThreadPoolExecutor(2) as pool:
        assert httpx2.get(f"{server.url}/readyz").status_code == 200
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
        assert httpx2.get(f"{server.url}/readyz").status_code == 503
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        assert 'seewhen_model_up{model="tiny"} 0' in httpx2.get(f"{server.url}/metrics").text


def test_one_bad_request_does_not_harm_its_batch(serving: Callable[..., Any]) -> None:
    """A job whose prompt the processor cannot take fails alone."""
    with serving(limits=Limits(n=1, batch_rows=3, batch_wait_ms=10_000)) as server, ThreadPoolExecutor(3) as pool:
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
    with serving(limits=Limits(read_seconds=1, write_seconds=1, trace_tokens=900), send_buffer=8192) as server:
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
        assert httpx2.get(f"{server.url}/healthz").status_code == 200  # all the while it answers others
        for connection in (silent, headers, body):
            connection.settimeout(10)
            assert connection.recv(100).startswith(b"HTTP/1.1 408")
            connection.close()
        until(lambda: not server.engine._running)
        until(lambda: "seewhen_cancelled_total 1" in server.settings.metrics.text())
        reader.close()
        assert server.client().chat.completions.create(**SHORT).usage.completion_tokens == 2


def test_shutdown_finishes_what_runs(checkpoint: Path, tmp_path: Path) -> None:
    """The real command: SIGTERM while an answer is on its way."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from seewhen.cli import main; main()", "serve", "--port", str(port)]
    command += [
        "--model",
        str(checkpoint),
        "--device",
        "cpu",
        "--method",
        "cai:start_layer=1",
        "--temperature",
        "0",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SEEWHEN_API_KEY": "a-key-of-some-length"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            try:
                return httpx2.get(f"http://127.0.0.1:{port}/readyz").status_code == 200
            except httpx2.HTTPError:
                return False

        until(ready, 60)
        url = f"http://127.0.0.1:{port}/v1"
        with pytest.raises(openai.AuthenticationError), openai.OpenAI(base_url=url, api_key="wrong") as stranger:
            stranger.models.list()
        client = openai.OpenAI(base_url=url, api_key="a-key-of-some-length", max_retries=0)
        assert [model.id for model in client.models.list()] == [checkpoint.name]
        stream = client.chat.completions.create(
            model=checkpoint.name,
            messages=question("w5", 1),
            max_tokens=60,
            stream=True,
            stream_options={"include_usage": True},
        )
        pieces = iter(stream)
        next(pieces)
        process.send_signal(signal.SIGTERM)
        assert list(pieces)[-1].usage.completion_tokens == 60
        assert process.wait(20) in (0, -signal.SIGTERM)
        assert "Traceback" not in log.read_text()
        client.close()
    finally:
        process.kill()


def test_engine_closes_with_its_queue_done(server: Running, serving: Callable[..., Any]) -> None:
    with serving() as own:
        answers: list[int] = []

        def one() -> None:
            answers.append(
                own.client().chat.completions.create(**{**LONG, "max_tokens": 60}).usage.completion_tokens
            )

        threads = [threading.Thread(target=one) for _ in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: bool(own.engine._running))
        until(lambda: len(own.engine._running) + own.engine.waiting == 3)
        own.engine.close()
        with pytest.raises(openai.InternalServerError) as closed:
            own.client().chat.completions.create(**SHORT)
        assert closed.value.code == "shutting_down"
        for thread in threads:
            thread.join()
        assert answers == [60] * 3
