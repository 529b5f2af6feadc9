"""Images from the few hosts an operator allows, and from nowhere else.

The name is resolved once, every address it has must be a public one, and the connection goes to the
address that was checked: a name that resolves differently the second time gains nothing. No redirect is
followed, no proxy asked, and one clock runs for all of it.
"""

from __future__ import annotations

import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from seewhen.errors import InvalidInput
from seewhen.server.failures import ApiError
from seewhen.server.limits import Limits

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_CHUNK = 64 * 1024
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST = ipaddress.IPv6Network("2000::/3")  # all that is given out; site-local and the like lie outside
_SPECIAL = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20"))
)  # not all Pythons know


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet, also where an IPv6 address wraps an IPv4 one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address.teredo is not None:
            return False
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address not in _UNICAST:
            return False
    special = any(address in network for network in _SPECIAL)
    return address.is_global and not (special or address.is_multicast or address.is_reserved)


def origin(text: str) -> tuple[str, str, int]:
    """Scheme, host and port of an entry of the allow-list: `images.example.org` or `http://host:8080`."""
    parts = urlsplit(text if "//" in text else f"https://{text}")
    try:
        port = parts.port
    except ValueError:
        port = -1
    plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or not plain or "*" in text:
        raise InvalidInput(f"{text!r} is not a host.", "For example: images.example.org or https://host:8443")
    return parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80)


@dataclass(frozen=True)
class Fetcher:
    """Fetches from `hosts` (as `origin` gives them). Without any, every address is refused."""

    hosts: frozenset[tuple[str, str, int]]
    limits: Limits
    permitted: Callable[[Address], bool] = is_public
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(cls, hosts: Sequence[str], limits: Limits) -> Fetcher:
        """From the operator's list."""
        return cls(frozenset(origin(host) for host in hosts), limits)

    def fetch(self, url: str) -> bytes:
        """The bytes at `url`."""
        if not self.hosts:
            raise _refused("Images must be data URLs on this server.", "data:image/png;base64,...")
        parts = self._allowed(url)
        scheme, host, port = _origin_of(parts)
        deadline = time.monotonic() + self.limits.fetch_seconds
        try:
            return self._get(parts, self._connected(scheme, host, port, deadline), deadline)
        except TimeoutError:
            raise _refused("The image took too long to arrive.", "Send it as a data URL.") from None
        except (OSError, ValueError):
            raise _refused("The image could not be fetched.", "Send it as a data URL.") from None

    def _allowed(self, url: str) -> SplitResult:
        bad = any(ord(character) <= 32 or ord(character) > 126 or character == "\\" for character in url)
        try:
            parts = urlsplit(url)
            known = not bad and parts.username is None and _origin_of(parts) in self.hosts
        except ValueError:
            known = False
        if not known:
            raise _refused("Images of this address are not allowed.", "Send the image as a data URL.")
        return parts

    def _connected(self, scheme: str, host: str, port: int, deadline: float) -> socket.socket:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(str(entry[4][0]).split("%")[0]) for entry in found]
        if not addresses or not all(self.permitted(address) for address in addresses):
            raise _refused("Images of this address are not allowed.", "Send the image as a data URL.")
        connection = socket.create_connection((str(addresses[0]), port), timeout=_left(deadline))
        if scheme == "http":
            return connection
        context = self.tls or ssl.create_default_context()
        connection.settimeout(_left(deadline))
        return context.wrap_socket(connection, server_hostname=host)

    def _get(self, parts: SplitResult, connection: socket.socket, deadline: float) -> bytes:
        """The body of a plain HTTP/1.0 answer: no chunks, no compression, the end of the connection is its end."""
        with connection:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            request = f"GET {target} HTTP/1.0\r\nHost: {parts.netloc}\r\nAccept: image/*\r\n\r\n"
            connection.settimeout(_left(deadline))
            connection.sendall(request.encode("ascii"))
            data = bytearray()
            while True:
                connection.settimeout(_left(deadline))
                chunk = connection.recv(_CHUNK)
                if not chunk:
                    break
                data += chunk
                if len(data) > self.limits.image_bytes + _CHUNK:
                    raise _refused("The image has too many bytes.", f"At most {self.limits.image_bytes:,}.")
        head, blank, body = bytes(data).partition(b"\r\n\r\n")
        status = head.split(b"\r\n")[0].split(b" ")
        if not blank or len(status) < 2 or not status[0].startswith(b"HTTP/1.") or status[1] != b"200":
            raise OSError  # a redirect is no image
        return body


def _origin_of(parts: SplitResult) -> tuple[str, str, int]:
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return parts.scheme, parts.hostname or "", port


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _refused(message: str, hint: str) -> ApiError:
    return ApiError(400, "invalid_image_url", message, hint, param="messages")
