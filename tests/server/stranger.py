"""A server behind a proxy that answers as it is told to."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from loopback import question

ASK = "Please describe this image ."


@dataclass
class Stranger:
    """A server that answers as it is told to, and remembers what it was asked."""

    url: str = ""
    seen: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    behaviour: str = "echo"
    held: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)  # who asked has hung up

    @property
    def asked(self) -> list[dict[str, Any]]:
        """The requests about images."""
        return [json.loads(body) for _, _, _, body in self.seen]


@contextmanager
def strange() -> Iterator[Stranger]:
    state = Stranger()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None: ...

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.seen.append((self.command, self.path, headers, body))
            getattr(self, state.behaviour)(body)

        do_GET = do_DELETE = do_POST

        def echo(self, body: bytes) -> None:
            self.send_response(418)
            self.send_header("Content-Type", "application/x-odd")
            self.send_header("X-Own", "theirs")
            self.send_header("Set-Cookie", "a=b")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def events(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(b"data: {}\n\n")
            state.held.wait(60)
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

        def drop(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"half")
            self.wfile.flush()
            self.close_connection = True

        def away(self, body: bytes) -> None:
            self.send_response(307)
            self.send_header("Location", f"{state.url}/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def hang(self, body: bytes) -> None:
            state.held.wait(60)
            self.close_connection = True

        def wait_for_the_end(self, body: bytes) -> None:
            ready, _, _ = select.select([self.connection], [], [], 120)
            if ready and not self.connection.recv(1, socket.MSG_PEEK):
                state.left.set()
            self.close_connection = True

        def nonsense(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "6")
            self.end_headers()
            self.wfile.write(b"<html>")

        def angry(self, body: bytes) -> None:
            said = json.dumps({"error": {"message": f"bad key {self.headers.get('Authorization')}"}}).encode()
            self.send_response(401)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    behind = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    behind.daemon_threads = True
    state.url = f"http://127.0.0.1:{behind.server_port}/v1"
    thread = threading.Thread(target=behind.serve_forever, daemon=True)
    thread.start()
    yield state
    state.held.set()
    behind.shutdown()
    behind.server_close()
    thread.join()


def about_an_image(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": question(ASK, 1), "max_tokens": 8, "temperature": 0, **more}
