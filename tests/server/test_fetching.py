"""Images from allowed hosts: only there, only public addresses, no redirects, within time and size."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import encoded, picture

from seewhen.errors import InvalidInput
from seewhen.server.failures import ApiError
from seewhen.server.fetching import Fetcher, is_public, origin
from seewhen.server.limits import Limits

IMAGE = encoded(picture())


class Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/image.png")
            self.end_headers()
            return
        self.send_response(404 if self.path == "/missing" else 200)
        self.end_headers()
        if self.path == "/slow":
            with suppress(OSError):
                for _ in range(600):  # longer than anybody's patience with one piece
                    self.wfile.write(b"x")
                    time.sleep(0.1)
        elif self.path == "/large":
            with suppress(OSError):
                self.wfile.write(b"x" * 400_000)
        elif self.path == "/image.png?size=1":
            self.wfile.write(IMAGE)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pages)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def fetcher(port: int, seconds: int = 60, **options: object) -> Fetcher:
    limits = Limits(image_bytes=300_000, fetch_seconds=seconds)
    return Fetcher(frozenset({("http", "localhost", port)}), limits, **{"permitted": lambda a: True, **options})


def refused(fetch: Fetcher, url: str) -> str:
    with pytest.raises(ApiError) as error:
        fetch.fetch(url)
    assert error.value.status == 400 and "127.0.0.1" not in str(error.value.body())
    return error.value.message


def test_fetches_an_image(port: int) -> None:
    assert fetcher(port).fetch(f"http://localhost:{port}/image.png?size=1#part") == IMAGE


def test_refusals(port: int) -> None:
    base = f"http://localhost:{port}"
    assert refused(fetcher(port), f"{base}/moved") == "The image could not be fetched."
    assert refused(fetcher(port), f"{base}/missing") == "The image could not be fetched."
    assert refused(fetcher(port), f"{base}/large") == "The image has too many bytes."
    # The clock is for all of it: each piece comes in time.
    assert refused(fetcher(port, seconds=1), f"{base}/slow") == "The image took too long to arrive."
    # The real rule: a name of the list that points to this machine is refused all the same.
    assert refused(fetcher(port, permitted=is_public), f"{base}/image.png?size=1") == (
        "Images of this address are not allowed."
    )
    assert refused(Fetcher.of([], Limits()), f"{base}/x") == "Images must be data URLs on this server."


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/x",  # not the name on the list
        "https://localhost:{port}/x",
        "http://localhost/x",
        "http://localhost:{port}@evil.example/x",
        "http://user:pass@localhost:{port}/x",
        "http://user@localhost:{port}/x",
        "http://localhost:{port}\\@evil.example/x",
        "http://localhost.:{port}/x",
        "http://localhost:{port}\r\nX: y/x",
        "http://localhost:{port} /x",
        "http://evil.example#localhost:{port}/x",
        "http://[::1]:{port}/x",
        "http://0x7f.1:{port}/x",
        "http://[localhost:{port}/x",
        "http://localhost:999999/x",
        "//localhost:{port}/x",
        "file://localhost/etc/passwd",
        "http:///x",
        "http://lоcalhost:{port}/x",  # a Cyrillic letter
        "",
    ],
)
def test_only_what_is_on_the_list(port: int, url: str) -> None:
    assert refused(fetcher(port), url.format(port=port)) == "Images of this address are not allowed."


def test_one_private_address_among_public_ones_is_enough(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the connection goes to the address that was checked: the name is resolved once."""
    calls: list[str] = []

    def resolve(host: str, port: int, *more: object, **options: object) -> list[tuple]:
        calls.append(host)
        addresses = ["127.0.0.1", "10.0.0.1"] if len(calls) == 1 else ["127.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    loopback_only = fetcher(port, permitted=lambda address: str(address) == "127.0.0.1")
    refused(loopback_only, f"http://localhost:{port}/image.png?size=1")
    assert loopback_only.fetch(f"http://localhost:{port}/image.png?size=1") == IMAGE
    # `create_connection` asks again, for the literal address: there is nothing to rebind.
    assert calls == ["localhost", "localhost", "127.0.0.1"]


PRIVATE = """
127.0.0.1 10.0.0.1 172.16.0.1 192.168.0.1 169.254.169.254 0.0.0.0 100.64.0.1 224.0.0.1 255.255.255.255 240.0.0.1
::1 :: fe80::1 fc00::1 ff02::1 ::ffff:127.0.0.1 ::ffff:10.0.0.1 64:ff9b::7f00:1 2002:7f00:1:: 2002:a00:1::
2001:0:1:1::1 2001:db8::1 fec0::1 feff::1 3fff::1 5f00::1 64:ff9b:1::1 64:ff9b:1:7f00:1:: 100::1
192.0.0.9 192.88.99.1
"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_wrapping_an_address_hides_nothing(inner: ipaddress.IPv4Address) -> None:
    assert is_public(ipaddress.ip_address(f"::ffff:{inner}")) == is_public(inner)
    nat64 = ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) + int(inner))
    assert is_public(nat64) <= is_public(inner)


def test_public_addresses() -> None:
    assert is_public(ipaddress.ip_address("8.8.8.8")) and is_public(ipaddress.ip_address("2606:4700::1111"))


def test_allow_list_entries() -> None:
    assert origin("images.example.org") == ("https", "images.example.org", 443)
    assert origin("http://Images.example.org:8080/") == ("http", "images.example.org", 8080)
    for bad in ("", "ftp://x", "https://x/path", "*.example.org", "https://u:p@x", "https://x:99999", "x?y"):
        with pytest.raises(InvalidInput):
            origin(bad)
