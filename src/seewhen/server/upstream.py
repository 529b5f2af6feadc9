"""Another server behind this one: requests pass to it and its answers come back, byte for byte.

Everything has an end (`wall_seconds`), no redirect is followed or handed on, and the key for the other server
comes from the environment; where there is none and this server has none either, the client's own is passed on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import unquote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from seewhen.errors import InvalidInput, MissingDependency
from seewhen.served.keys import checked_key
from seewhen.server.failures import ApiError, client_gone
from seewhen.server.responding import disconnected
from seewhen.server.settings import Settings

log = logging.getLogger("seewhen.server")

PREFIX = "/v1/"
# Of one connection only (RFC 9110).
_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
# Set anew for the next one, or none of its business.
_NOT_ON = {
    "host",
    "content-length",
    "authorization",
    "expect",
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "origin",
    "referer",
    "cookie",
}
_NOT_BACK = {"set-cookie", "date"}  # ours has a date of its own, and two are one too many for some proxies


class Upstream:
    """The other server, at `url` (…/v1)."""

    def __init__(self, url: str, key: str | None, settings: Settings) -> None:
        self.url, self._key, self._settings = url, key, settings

    def start(self) -> None:
        """On the event loop that will use it."""
        try:
            import openai
        except ImportError:
            raise MissingDependency("openai", "remote") from None
        self._client = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            timeout=self._settings.limits.wall_seconds,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),  # one client's are not another's
        )

    async def close(self) -> None:
        """Ends the connections."""
        await self._client.aclose()

    def key(self, headers: Mapping[str, str]) -> str | None:
        """The key for a request: ours, or the client's own where that is not the key to this server."""
        if self._key is not None or self._settings.key is not None:
            return self._key
        kind, _, given = headers.get("authorization", "").partition(" ")
        try:
            key = checked_key(given, "the request")
        except InvalidInput as error:
            raise ApiError(401, "invalid_key", error.message, error.hint) from None
        return key if kind.lower() == "bearer" and key else None

    async def passed(self, request: Request, body: bytes, why: str = "") -> Response:
        """The other server's answer to a request as it is. `why` it was not confirmed goes into a header."""
        wall = self._settings.limits.wall_seconds
        deadline = asyncio.get_running_loop().time() + wall
        asked = self._client.build_request(
            request.method, self._target(request), headers=self._headers(request), content=body
        )
        try:
            answer = await _unless_gone(request, self._client.send(asked, stream=True), wall)
        except TimeoutError:
            raise _late() from None
        except ApiError:
            self._settings.metrics.cancelled()
            raise
        except Exception as error:
            if "Timeout" in type(error).__name__:
                raise _late() from None
            log.warning("the upstream server cannot be reached (%s)", type(error).__name__)
            raise ApiError(502, "upstream_unreachable", "The upstream server cannot be reached.") from None
        if 300 <= answer.status_code < 400 and answer.status_code != 304:
            await answer.aclose()
            log.warning("the upstream server redirects (%d)", answer.status_code)
            message = "The upstream server redirects, which is not followed."
            raise ApiError(502, "upstream_redirects", message)
        back = StreamingResponse(self._body(answer, deadline), answer.status_code)
        named = _NOT_BACK | _of_the_connection(answer.headers)
        back.raw_headers = [
            (k.lower(), v) for k, v in answer.headers.raw if k.lower().decode("latin-1") not in named
        ]
        if why:
            back.headers["X-Seewhen-Passed"] = why
        return back

    async def _body(self, answer: Any, deadline: float) -> AsyncIterator[bytes]:
        """As it arrives. Where it breaks off, ours breaks off, so that nobody takes it for complete."""
        try:
            async with asyncio.timeout_at(deadline):
                async for chunk in answer.aiter_raw():
                    yield chunk
        finally:
            await answer.aclose()

    def _target(self, request: Request) -> str:
        path = request.scope["raw_path"].decode("ascii", "replace")
        rest = path[len(PREFIX) :]
        steps = unquote(rest).replace("\\", "/").split("/")
        if not path.startswith(PREFIX) or not {".", ".."}.isdisjoint(steps):
            raise ApiError(404, "not_found", "There is nothing here.", "Paths begin with /v1/.")
        query = request.scope["query_string"].decode("ascii", "replace")
        return f"{self.url}/{rest}" + (f"?{query}" if query else "")

    def _headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        named = _NOT_ON | _of_the_connection(request.headers)
        sent = [(name, value) for name, value in request.headers.raw if name.decode("latin-1") not in named]
        if "accept-encoding" not in request.headers:
            sent.append((b"accept-encoding", b"identity"))
        key = self.key(request.headers)
        return sent if key is None else [*sent, (b"authorization", f"Bearer {key}".encode())]


async def _unless_gone(request: Request, sending: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """What comes of `sending`, which ends when the client goes or the time is over."""
    gone, answer = asyncio.create_task(disconnected(request)), asyncio.create_task(sending)
    try:
        await asyncio.wait({gone, answer}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise client_gone() if gone.done() else TimeoutError
    finally:
        for task in (gone, answer):
            task.cancel()
        await asyncio.gather(gone, answer, return_exceptions=True)


def _of_the_connection(headers: Mapping[str, str]) -> set[str]:
    """Headers that are not handed on: by rule, and because the other side says so."""
    return _HOP | {name.strip().lower() for name in headers.get("connection", "").split(",")}


def _late() -> ApiError:
    return ApiError(504, "upstream_too_slow", "The upstream server gave no answer in time.", "Try again later.")
