"""A real server that does wrong: it drops, delays, drips, cuts off, redirects, lies, and talks too much."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[["Handler"], None]


def completion(text: str = "A dog.", **choice: Any) -> dict[str, Any]:
    usage = {"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop", **choice}], "usage": usage}


@dataclass
class Faulty:
    """What it does with each request, in order; the last goes on."""

    url: str
    faults: list[Fault]
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    over: threading.Event = field(default_factory=threading.Event)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        faulty: Faulty = self.server.faulty
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with faulty.lock:
            fault = faulty.faults[min(len(faulty.asked), len(faulty.faults) - 1)]
            faulty.asked.append(body)
            faulty.keys.append(self.headers["authorization"])
        self.body = body
        self.close_connection = True
        fault(self)

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def reply(self, body: bytes, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", headers.pop("content_type", "application/json"))
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Connection", "close")  # as it does; who went on with it would ask again
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def says(value: Any, status: int = 200, **headers: str) -> Fault:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return lambda handler: handler.reply(body, status, **headers)


def passes_on(handler: Handler, url: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """What the server at `url` answers to `body`; none if it refuses, which the client is then told."""
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(asked, timeout=100) as found:
            reply: dict[str, Any] = json.load(found)
            return reply
    except urllib.error.HTTPError as error:
        handler.reply(error.read(), error.code)
        return None


def sees(handler: Handler) -> None:
    """As it should: an image is part of the prompt."""
    reply = completion()
    reply["usage"]["prompt_tokens"] += 90 * json.dumps(handler.body).count("image_url")
    handler.reply(json.dumps(reply).encode())


def drops(handler: Handler) -> None:
    handler.connection.close()


def hangs(handler: Handler) -> None:
    handler.server.faulty.over.wait(300)


def drips(handler: Handler) -> None:
    """A byte now and then, each in time; the head never ends."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not handler.server.faulty.over.wait(0.05):
        handler.wfile.write(b"x")


def drips_body(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n")
    while not handler.server.faulty.over.wait(0.05):
        handler.wfile.write(b" ")


def cuts_off(handler: Handler) -> None:
    handler.reply(json.dumps(completion()).encode()[:40], length=4000)


def floods(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
    while not handler.server.faulty.over.is_set():
        handler.wfile.write(b" " * (1 << 20))


def floods_error(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.1 400 Bad\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
    while not handler.server.faulty.over.is_set():
        handler.wfile.write(b"no " * (1 << 18))


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # many come at once

    def handle_error(self, *_: Any) -> None:
        """A client that gives up is what is wanted."""


@contextmanager
def faulty(*faults: Fault) -> Iterator[Faulty]:
    server = _Quiet(("127.0.0.1", 0), Handler)
    found = Faulty(f"http://127.0.0.1:{server.server_port}/v1", list(faults))
    server.faulty = found  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.over.set()
        server.shutdown()
        server.server_close()
        thread.join(30)
