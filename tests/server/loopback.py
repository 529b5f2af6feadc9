"""Real servers on loopback: uvicorn in a thread, a tiny checkpoint, the official client."""

from __future__ import annotations

import base64
import io
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
from PIL import Image

import seewhen
from seewhen.loading import Loaded
from seewhen.server.app import create_app
from seewhen.server.engine import Engine
from seewhen.server.fetching import Fetcher
from seewhen.server.limits import Limits
from seewhen.server.running import make_server
from seewhen.server.settings import Settings

MODEL = "tiny"


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    port: int
    engine: Engine
    settings: Settings
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
    """Serve `loaded` for the time of the context. With a small `send_buffer` slow readers are noticed soon."""
    limits = settings.pop("limits", Limits())
    method = seewhen.method(settings.pop("method", "cai"), start_layer=1)
    fetcher = settings.pop("fetcher", None) or Fetcher.of([], limits)
    made = Settings(method=method, limits=limits, fetcher=fetcher, **settings)
    engine = Engine(MODEL, loaded, limits, made.metrics)
    server = make_server(create_app({MODEL: engine}, made), "127.0.0.1", 0, "warning")
    listening = socket.create_server(("127.0.0.1", 0))
    if send_buffer is not None:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.01)
    served = Running(listening.getsockname()[1], engine, made)
    try:
        yield served
    finally:
        for client in served.clients.values():
            client.close()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the server did not stop"


def picture(seed: int = 0, size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.frombytes("RGB", size, random.Random(seed).randbytes(3 * size[0] * size[1]))


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def data_url(data: bytes | Image.Image, kind: str = "png") -> str:
    data = encoded(data) if isinstance(data, Image.Image) else data
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def question(text: str = "w5 w6 w7", *seeds: int) -> list[dict[str, Any]]:
    """A user's message with one picture per seed."""
    images = [{"type": "image_url", "image_url": {"url": data_url(picture(seed))}} for seed in seeds]
    return [{"role": "user", "content": [*images, {"type": "text", "text": text}]}]
