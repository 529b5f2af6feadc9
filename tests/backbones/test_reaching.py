"""A hub that cannot be reached is found out with one request; what is in the cache is used all the same."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from seewhen.backbones.loading import PACKAGED_PATH

NAME = "someone/model"


def told(code: str, cache: Path, **environment: str) -> list[str]:
    """The lines that `code` prints in a process of its own: the hub's address is read at import."""
    hidden = ("HF_", "HTTP", "NO_PROXY", "ALL_PROXY", "TRANSFORMERS")
    settings = {k: v for k, v in os.environ.items() if not k.upper().startswith(hidden)}
    settings |= {"HF_HOME": str(cache), **environment}
    program = f"import sys\nfrom seewhen.backbones import loading\nfrom seewhen.errors import SeewhenError\n{code}"
    ran = subprocess.run(
        [sys.executable, "-c", program], env=settings, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


CHECK = f"""
try:
    loading.check_name({NAME!r})
    print("fine")
except SeewhenError as error:
    print(error)
print("torch" in sys.modules)
"""
LOAD = f"""
try:
    print(type(loading.load_config({NAME!r})).__name__)
    print(type(loading.load_processor({NAME!r}).tokenizer).__name__)
except SeewhenError as error:
    print(error)
"""


@pytest.fixture
def nobody() -> str:
    """An address of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """A server that has nothing, as a hub and as a proxy: its address, and the requests it gets."""
    requests: list[str] = []

    class Nothing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.send_response(502 if self.command == "CONNECT" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_CONNECT = do_HEAD

        def log_message(self, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Nothing)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", requests
    server.shutdown()
    thread.join()


def keep(cache: Path) -> None:
    """The packaged model's small files in the hub's cache, as if downloaded once."""
    folder = cache / "hub" / f"models--{NAME.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0" * 40)
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in PACKAGED_PATH.iterdir():
        if file.suffix in (".json", ".jinja", ".txt"):
            shutil.copy(file, snapshot)


def test_nobody_there_is_said_before_torch_is_imported(nobody: str, tmp_path: Path) -> None:
    said, heavy = told(CHECK, tmp_path, HF_ENDPOINT=nobody)
    assert f"{NAME} cannot be loaded: {nobody} cannot be reached" in said and "not in the cache" in said
    assert heavy == "False"


def test_a_name_that_is_looked_up_for_ever_is_not_waited_for(tmp_path: Path) -> None:
    """Without a network a resolver tries for many seconds, and no timeout of a client ends that."""
    hangs = """
import socket, threading
never, looked_up = threading.Event(), []
def hang(*address, **_):
    looked_up.append(address)
    never.wait()
    raise OSError("nobody")
socket.getaddrinfo = hang
"""
    again = f"{CHECK}{CHECK}print(never.is_set(), len(looked_up))"
    first, heavy, second, _, ended = told(hangs + again, tmp_path, HF_ENDPOINT="https://hub.invalid")
    assert "https://hub.invalid cannot be reached" in first and second == first and heavy == "False"
    assert ended == "False 1"  # it hangs still, and was asked once


@pytest.mark.slow
def test_a_proxy_that_refuses_is_asked_once(asked: tuple[str, list[str]], tmp_path: Path) -> None:
    proxy, requests = asked
    said, _ = told(CHECK, tmp_path, HF_ENDPOINT="https://hub.invalid", HTTPS_PROXY=proxy)
    assert "https://hub.invalid cannot be reached" in said
    assert requests == ["CONNECT hub.invalid:443"]
    assert "cannot be loaded" in told(LOAD, tmp_path, HF_ENDPOINT="https://hub.invalid", HTTPS_PROXY=proxy)[0]
    # Ours, and one in which the client asks for something else; without ours it would try six times more.
    assert len(requests) <= 3 and set(requests) == {"CONNECT hub.invalid:443"}


@pytest.mark.slow
def test_a_hub_that_answers_is_left_to_its_client(asked: tuple[str, list[str]], tmp_path: Path) -> None:
    hub, requests = asked
    assert told(CHECK, tmp_path, HF_ENDPOINT=hub) == ["fine", "False"]
    assert requests == ["HEAD /"]
    (said,) = told(LOAD, tmp_path, HF_ENDPOINT=hub)
    assert NAME in said and "cannot be reached" not in said
    assert any(f"/{NAME}/" in request for request in requests)


def test_offline_mode_asks_nobody(asked: tuple[str, list[str]], tmp_path: Path) -> None:
    hub, requests = asked
    said, _ = told(CHECK, tmp_path, HF_ENDPOINT=hub, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in said and requests == []


@pytest.mark.slow
def test_the_cache_serves_without_a_connection(nobody: str, tmp_path: Path) -> None:
    keep(tmp_path)
    assert told(CHECK, tmp_path, HF_ENDPOINT=nobody) == ["fine", "False"]
    config, tokenizer = told(LOAD, tmp_path, HF_ENDPOINT=nobody)
    assert config.endswith("Config") and "Tokenizer" in tokenizer


def test_what_is_no_hub_id_is_said(tmp_path: Path) -> None:
    said, _ = told(CHECK.replace(NAME, "a b/c/d"), tmp_path)
    assert "neither a directory nor a hub id" in said
