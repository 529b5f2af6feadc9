"""Real servers on loopback: uvicorn in a thread, a tiny checkpoint, the official client."""

from __future__ import annotations

import base64
import io
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import uvicorn
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families

import seewhen
from seewhen.backbones.loading import Loaded
from seewhen.server.app import create_app
from seewhen.server.engine import Engine
from seewhen.server.fetching import Fetcher
from seewhen.server.guard import Guard
from seewhen.server.jobs import Job
from seewhen.server.limits import Limits
from seewhen.server.running import make_server
from seewhen.server.settings import Settings

MODEL = "tiny"
KEY = "a-key-of-some-length"


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    port: int
    engine: Engine
    settings: Settings
    server: uvicorn.Server
    clients: dict[str, openai.OpenAI] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "none") -> openai.OpenAI:
        """The official client; one for all threads."""
        if key not in self.clients:
            self.clients[key] = openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)
        return self.clients[key]


@contextmanager
def running(loaded: Loaded, send_buffer: int | None = None, **settings: Any) -> Iterator[Running]:
    """Serve `loaded`, and `others` by name, for the time of the context. With a small `send_buffer` slow readers
    are noticed soon."""
    others: dict[str, Loaded] = settings.pop("others", {})
    limits, fast = settings.pop("limits", Limits()), settings.pop("fast", "auto")
    method = _method(settings.pop("method", None))
    fetcher = settings.pop("fetcher", None) or Fetcher.of([], limits)
    made = Settings(method=method, limits=limits, fetcher=fetcher, **settings)
    engine = Engine(MODEL, loaded, limits, made.metrics, fast)
    engines = {MODEL: engine, **{name: Engine(name, each, limits, made.metrics) for name, each in others.items()}}
    with listening(create_app(engines, made), send_buffer) as (port, server):
        served = Running(port, engine, made, server)
        try:
            yield served
        finally:
            for client in served.clients.values():
                client.close()


@contextmanager
def listening(app: Guard, send_buffer: int | None = None) -> Iterator[tuple[int, uvicorn.Server]]:
    """An application that listens on a free port."""
    server = make_server(app, "127.0.0.1", 0, "warning")
    taken = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    try:
        yield taken.getsockname()[1], server
    finally:
        server.should_exit = True
        thread.join(50)  # an upload that stops may take 60 (`read_seconds`)
        assert not thread.is_alive(), "the server did not stop"


def raw(server: Running, body: dict[str, Any]) -> socket.socket:
    """A connection on which a request was sent and nothing read."""
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head.encode() + data)
    return connection


def _method(name: str | None) -> seewhen.Method:
    return seewhen.method("cai", start_layer=1) if name is None else seewhen.method(name)


def until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for something that happens in another thread or process."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


@contextmanager
def held(engine: Engine) -> Iterator[None]:
    """Batches wait for the end of the context, so that others come while they run, on machines of any speed."""
    run, go = engine.decoder.run, threading.Event()

    def patient(jobs: Sequence[Job]) -> None:
        until(go.is_set)
        run(jobs)

    engine.decoder.run = patient  # type: ignore[method-assign]
    try:
        yield
    finally:
        del engine.decoder.run
        go.set()


@contextmanager
def command(checkpoint: Path, log: Path, *options: str, files: int | None = None) -> Iterator[Command]:
    """The real command in a process of its own, ready; with `files` it may have no more files open."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    line = [sys.executable, "-c", "from seewhen.cli import main; main()", "serve", "--port", str(port)]
    line += ["--model", str(checkpoint), "--device", "cpu", "--method", "cai:start_layer=1", *options]
    line = line if files is None else ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *line]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "SEEWHEN_API_KEY": KEY}
    with log.open("wb") as output:
        process = subprocess.Popen(line, env=environment, stdout=output, stderr=output)

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=60).status_code == 200
        except httpx2.HTTPError:
            return False

    try:
        until(ready, 120)
        yield Command(port, process, checkpoint.name)
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True)
class Command:
    """A server process that runs."""

    port: int
    process: subprocess.Popen[bytes]
    model: str

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


@dataclass(frozen=True)
class Here:
    """A server of this process, as the load scripts see one."""

    url: str

    def resident(self) -> int:
        return 0


def counted(server: Running, name: str, **labels: str) -> float:
    """A number of /metrics, summed over the labels that are not given."""
    families = text_string_to_metric_families(server.settings.metrics.text())
    samples = [sample for family in families for sample in family.samples if sample.name == f"seewhen_{name}"]
    return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())


def picture(seed: int = 0, size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def data_url(data: bytes | Image.Image, kind: str = "png") -> str:
    data = encoded(data) if isinstance(data, Image.Image) else data
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def question(text: str = "w5 w6 w7", *seeds: int) -> list[dict[str, Any]]:
    """A user's message with one picture per seed."""
    images = [{"type": "image_url", "image_url": {"url": data_url(picture(seed))}} for seed in seeds]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]
