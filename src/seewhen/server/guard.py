"""What every request passes before any route, and what every response carries.

On the way in: host, origin, key, size and time of the body. On the way out: security headers and an id.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from seewhen.server.failures import ApiError, client_gone, internal
from seewhen.server.settings import Settings

log = logging.getLogger("seewhen.server")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_LINGER, _SILENCE = 2.0, 0.25  # seconds a refused request is read on, and of those without a byte
OPEN_PATHS = ("/", "/healthz", "/readyz")  # the page, where a key can be typed in; probes, which have none
_COUNTED = (
    *OPEN_PATHS,
    "/metrics",
    "/v1/chat/completions",
    "/v1/check",
    "/v1/models",
    "/v1/methods",
    "/openapi.json",
)
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI middleware around the whole application."""

    def __init__(self, app: App, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self._held = 0  # bytes of bodies in memory
        self._answering = 0  # requests that have arrived as a whole

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = secrets.token_hex(12)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        status = 0
        body = _Body(self, scope, receive)

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                state["answered"] = status == 200 and scope["path"] not in OPEN_PATHS
                # Who has not sent all of the request might never do so: it is not waited for.
                ours = {"X-Request-Id": request_id} | ({} if body.complete else {"Connection": "close"})
                message = {**message, "headers": [*message.get("headers", ()), *_headers(ours, message)]}
            await send(message)

        try:
            self._check(scope)
            body.expect()
            await self.app(scope, body.receive, reply)
        except ApiError as error:
            if not status:
                await _send_error(error, reply, body)
        except Exception:
            log.exception("request %s failed", request_id)
            if not status:
                await _send_error(internal(), reply, body)
        finally:
            body.drop()
            path = scope["path"] if scope["path"] in _COUNTED else "other"
            self.settings.metrics.request(path, status)

    def _check(self, scope: MutableMapping[str, Any]) -> None:
        host = _header(scope, b"host") or ""
        if not self.settings.knows(host):
            raise ApiError(
                421, "unknown_host", "This server does not go by that name.", "Start it with --allow-host NAME."
            )
        origin = _header(scope, b"origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            hint = "Call it from a program, or serve that page from this address."
            raise ApiError(403, "foreign_origin", "Other sites' pages may not call this server.", hint)
        if self.settings.key is not None and scope["path"] not in OPEN_PATHS:
            given = (_header(scope, b"authorization") or "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, f"Bearer {self.settings.key}".encode()):
                raise ApiError(
                    401, "invalid_api_key", "The API key is missing or wrong.", "Authorization: Bearer ..."
                )

    def hold(self, size: int) -> None:
        """Account for body bytes that are now in memory."""
        if self._held + size > self.settings.limits.bodies_bytes:
            raise _too_busy("Too much is being uploaded.")
        self._held += size

    def begin(self) -> None:
        """Account for a request that is to be answered."""
        if self._answering >= self.settings.limits.requests:
            raise _too_busy("Too many requests are being answered.")
        self._answering += 1

    def end(self, size: int, begun: bool) -> None:
        """A request is over that had `size` bytes."""
        self._held -= size
        self._answering -= begun


class _Body:
    """The body of one request, counted and timed while it is read."""

    def __init__(self, guard: Guard, scope: MutableMapping[str, Any], receive: Receive) -> None:
        self._guard, self._receive = guard, receive
        self._limit = guard.settings.limits.body_bytes
        self._deadline = time.monotonic() + guard.settings.limits.read_seconds
        self._open_path = scope["path"] in OPEN_PATHS
        self._length = _header(scope, b"content-length")
        self.complete = self._length in (None, "0") and _header(scope, b"transfer-encoding") is None
        self._size, self._begun = 0, False

    def expect(self) -> None:
        """Refuse a body that says itself that it is too large."""
        if self._length is not None and (not self._length.isdecimal() or int(self._length) > self._limit):
            raise self._too_large()
        if self.complete:
            self._begin()

    async def receive(self) -> Message:
        """The next message; after the end of the body this waits for the client to go away."""
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout(self._deadline - time.monotonic()):
                message = await self._receive()
        except TimeoutError:
            raise ApiError(408, "slow_request", "The request took too long to arrive.", "Send it again.") from None
        if message["type"] == "http.disconnect":
            raise client_gone()
        size = len(message.get("body", b""))
        if self._size + size > self._limit:
            raise self._too_large()
        self._guard.hold(size)
        self._size += size
        if not message.get("more_body", False):
            self.complete = True
            self._begin()
        return message

    async def forget(self) -> None:
        """Read on for a moment, to no purpose: a connection that is closed over unread bytes is reset, and who is
        still sending would lose the answer."""
        try:
            async with asyncio.timeout(_LINGER):
                while not self.complete:
                    async with asyncio.timeout(_SILENCE):
                        message = await self._receive()
                    self.complete = message["type"] == "http.disconnect" or not message.get("more_body", False)
        except TimeoutError:
            return

    def drop(self) -> None:
        """The request is over."""
        self._guard.end(self._size, self._begun)

    def _begin(self) -> None:
        if not self._open_path:  # probes always get through
            self._guard.begin()
            self._begun = True

    def _too_large(self) -> ApiError:
        return ApiError(413, "body_too_large", "The request is too large.", f"At most {self._limit:,} bytes.")


def _too_busy(message: str) -> ApiError:
    return ApiError(429, "too_busy", message, "Try again later.", retry_after=5)


def _header(scope: MutableMapping[str, Any], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def _headers(ours: Mapping[str, str], message: Message) -> list[tuple[bytes, bytes]]:
    """Ours, except where a route set its own (a page has a policy of its own)."""
    own = {key.lower() for key, _ in message.get("headers", ())}
    named = {key.lower().encode(): value.encode() for key, value in (*HEADERS.items(), *ours.items())}
    return [(key, value) for key, value in named.items() if key not in own]


async def _send_error(error: ApiError, send: Send, rest: _Body) -> None:
    body = json.dumps(error.body(), ensure_ascii=False).encode("utf-8", "replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(key.lower().encode(), value.encode()) for key, value in error.headers().items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await rest.forget()
    await send({"type": "http.response.body", "body": b""})
