"""A server on loopback that plays the hub and a mirror of other hosts: real requests, real files, real faults."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Elsewhere:
    """What is served, what goes wrong, and what was asked for."""

    datasets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)  # "host/path" of a mirrored file
    licence: str | None = "mit"
    cut: dict[str, list[int]] = field(default_factory=dict)  # file name: bytes after which each answer breaks off
    stall: set[str] = field(default_factory=set)  # file names whose answer stops in the middle and stays open
    spoilt: set[str] = field(default_factory=set)  # file names that come with one byte changed
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # (path, Range)
    stalled: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def ranges(self, name: str) -> list[str | None]:
        """How the bytes of a file were asked for, request by request."""
        return [asked for path, asked in self.asked if path.endswith(name) and "/resolve/" not in path]

    def description(self, repository: str) -> bytes:
        siblings = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": hashlib.sha1(content).hexdigest(),
                "lfs": {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130},
            }
            for name, content in self.datasets[repository].items()
        ]
        card = {"license": self.licence} if self.licence else {}
        plain = {"id": repository, "sha": REVISION, "siblings": siblings, "cardData": card, "tags": []}
        return json.dumps(plain | {"private": False, "downloads": 0, "likes": 0}).encode()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        there = self.server.there
        path = unquote(urlsplit(self.path).path).lstrip("/")
        there.asked.append((path, self.headers.get("Range")))
        if path.startswith("api/datasets/"):
            repository = path.removeprefix("api/datasets/")
            if repository not in there.datasets:
                self.send_error(404)
            else:
                self._send(there.description(repository), "application/json")
        elif path.startswith("datasets/") and "/resolve/" in path:
            # As the hub does: whoever may read is sent to another host, which knows nothing of tokens.
            repository, _, inside = path.removeprefix("datasets/").partition(f"/resolve/{REVISION}/")
            self.send_response(302)
            self.send_header("Location", f"{there.url}/cdn/{repository}/{inside}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith("cdn/"):
            if "Authorization" in self.headers:
                self.send_error(400, "only one auth mechanism allowed")
                return
            owner, name, inside = path.removeprefix("cdn/").split("/", 2)
            self._file(there.datasets.get(f"{owner}/{name}", {}).get(inside), inside)
        else:
            self._file(there.files.get(path), path)

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _file(self, content: bytes | None, path: str) -> None:
        there, name = self.server.there, path.rsplit("/", 1)[-1]
        if content is None:
            self.send_error(404)
            return
        if name in there.spoilt:
            content = content[:-1] + bytes([content[-1] ^ 1])
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        rest = content[start:]
        if name in there.stall:
            self.wfile.write(rest[: len(rest) // 2])
            self.wfile.flush()
            there.stalled.set()
            self.server.release.wait(60)
        elif there.cut.get(name):
            self.wfile.write(rest[: there.cut[name].pop(0)])
        else:
            self.wfile.write(rest)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    there: Elsewhere
    release: threading.Event


@contextmanager
def serving() -> Iterator[Elsewhere]:
    """A server for the time of the context."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.there = Elsewhere(url=f"http://127.0.0.1:{server.server_address[1]}")
    server.release = threading.Event()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.there
    finally:
        server.release.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
