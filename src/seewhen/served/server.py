"""A server that is asked: one connection pool, a bound on requests at once, retries, deadlines, limits, counters.

Requests run on an event loop in a thread of its own, so that a deadline ends a request wherever it hangs.
"""

from __future__ import annotations

import asyncio
import email.utils
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from seewhen.errors import InvalidInput, MissingDependency, SeewhenError
from seewhen.served.replies import Completion, Usage, read_reply

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY = "OPENAI_API_KEY"
_MOST_BYTES = 16 << 20  # of an answer
_MOST_QUOTED = 300  # characters of a server's own words
_LONGEST_WAIT = 60.0  # between two tries, whatever the server asks for


class ServerFailed(SeewhenError):
    """A server that cannot be reached, refuses us, or answers nonsense. `status` is its own, if it gave one."""

    status: int | None = None


class RequestRefused(InvalidInput):
    """A server that refuses this one request: too large, too long, an option it does not have."""

    status: int | None = None


class _Status(Exception):
    """A response that is no answer."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, headers, body


class _Nonsense(Exception):
    """A response that is not read to its end."""


@dataclass(frozen=True)
class Patience:
    """How long is waited, and for how many at once."""

    timeout: float = 120.0  # seconds for one try
    deadline: float = 600.0  # seconds for all tries of one request, waiting between them included
    tries: int = 6
    at_once: int = 16  # requests

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise InvalidInput(f"{name}={value} leaves no room for an answer.", "Give more than 0.")


class Meter:
    """Counts what the requests of one answer cost; safe to share between threads."""

    def __init__(self) -> None:
        self._lock, self.usage = threading.Lock(), Usage()

    def add(self, usage: Usage) -> None:
        with self._lock:
            self.usage += usage


class Server:
    """An OpenAI-compatible server. The key is read from the environment and kept out of sight."""

    def __init__(
        self, url: str, key_from: str = KEY, patience: Patience | None = None, *, key: str | None = None
    ) -> None:
        """A `key` that is given is taken in place of the environment's."""
        self.url = checked_url(url)
        self.patience = patience or Patience()
        self.meter = Meter()  # of everything
        self._key = os.environ.get(key_from, "").strip() if key is None else key
        if key_from != KEY and not self._key:
            raise InvalidInput(f"The environment has no key in {key_from}.", "Set it, or leave the name out.")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def __reduce__(self) -> Any:
        raise TypeError("A server is not pickled: it holds a key.")

    def ask(self, requests: Sequence[Mapping[str, Any]], meter: Meter) -> list[Completion]:
        """The answers to all requests, asked at once; the first failure is raised and the others are given up."""
        return asyncio.run_coroutine_threadsafe(self._ask(requests, meter), self._running()).result()

    def close(self) -> None:
        """Ends the connections."""
        with self._starting:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._client.close(), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)

    # -- on the loop -----------------------------------------------------------------------------------------

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._client = self._connected()
                self._places = asyncio.Semaphore(self.patience.at_once)
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="seewhen-served", daemon=True).start()
            return self._loop

    def _connected(self) -> AsyncOpenAI:
        try:
            import openai
        except ImportError:
            raise MissingDependency("openai", "remote") from None
        http = openai.DefaultAsyncHttpxClient(
            follow_redirects=False,
            timeout=self.patience.timeout,
            event_hooks={"response": [_look_at]},
            headers={"Accept-Encoding": "identity"},
        )
        return openai.AsyncOpenAI(
            base_url=self.url,
            api_key=self._key or "none",
            max_retries=0,
            timeout=self.patience.timeout,
            http_client=http,
        )

    async def _ask(self, requests: Sequence[Mapping[str, Any]], meter: Meter) -> list[Completion]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._patiently(request, meter)) for request in requests]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _patiently(self, request: Mapping[str, Any], meter: Meter) -> Completion:
        """One request, tried again after what may pass."""
        spent = 0.0
        for number in range(1, self.patience.tries + 1):
            async with self._places:
                started = time.monotonic()
                try:
                    found = read_reply(await self._once(request, self.patience.deadline - spent, meter))
                except Exception as error:
                    failure, passing = self._understood(error)
                    wait = _wait(number, error)
                else:
                    self._count(found.usage, meter)
                    return found
            spent += time.monotonic() - started + wait
            if not passing or number == self.patience.tries or spent >= self.patience.deadline:
                raise failure
            await asyncio.sleep(wait)
        raise AssertionError("there is at least one try")

    def _count(self, usage: Usage, meter: Meter) -> None:
        for each in (self.meter, meter):
            each.add(usage)

    async def _once(self, request: Mapping[str, Any], left: float, meter: Meter) -> bytes:
        known = {name: value for name, value in request.items() if name in ("model", "messages")}
        rest = {name: value for name, value in request.items() if name not in known}
        self._count(Usage(requests=1), meter)
        async with asyncio.timeout(min(self.patience.timeout, left)):
            create = self._client.chat.completions.with_streaming_response.create
            async with create(**known, extra_body=rest) as response:
                return await _bounded(response.iter_bytes())

    def _understood(self, error: Exception) -> tuple[SeewhenError, bool]:
        """The error in our own words, and whether it may pass."""
        cause = error.__cause__ if isinstance(error.__cause__, _Status | _Nonsense) else error
        if isinstance(cause, _Status):
            failure, passing = self._refused(cause)
            failure.status = cause.status
            return failure, passing
        if isinstance(cause, InvalidInput):
            return ServerFailed(f"{self.url}: {cause.message}", cause.hint), False
        if isinstance(cause, _Nonsense):
            return ServerFailed(f"{self.url}: {cause}", "Is this the address of the right server?"), False
        if isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__:
            seconds = f"{self.patience.timeout:g} seconds"
            return ServerFailed(f"{self.url} gave no answer within {seconds}.", "Is it overloaded?"), True
        reason = self._quoted(str(cause.__cause__ or cause) or type(cause).__name__)
        return ServerFailed(f"{self.url} cannot be reached: {reason}", "Check the address."), True

    def _refused(self, error: _Status) -> tuple[ServerFailed | RequestRefused, bool]:
        status, said = error.status, self._quoted(error.body.decode("utf-8", "replace"))
        told = f"{self.url} answered {status}: {said}"
        if 300 <= status < 400:
            where = self._quoted(error.headers.get("location", ""))
            told = f"{self.url} redirects to {where or 'nowhere'}."
            return ServerFailed(told, "Redirects are not followed: give the real address."), False
        if status in (401, 403):
            return ServerFailed(told, f"Put a valid key into the environment: {KEY}, or name another."), False
        if status == 404:
            return ServerFailed(told, "Check the address (…/v1) and the name of the served model."), False
        if status in (408, 409, 425, 429) or status >= 500:
            return ServerFailed(told, "It may pass: try again later, or ask for less at once."), True
        return RequestRefused(told, "The server does not take this request."), False

    def _quoted(self, text: str) -> str:
        """A stranger's words: short, in one line, and never with our key in them."""
        text = " ".join(text.replace(self._key, "[key]").split() if self._key else text.split())
        return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]} ..."


async def _look_at(response: Any) -> None:
    """Before its body is read: no answers that unpack to more, and of errors no more than can be quoted."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise _Nonsense("The answer is packed, though that was not asked for.")
    if response.status_code != 200:
        body = b""
        with suppress(Exception):  # whatever is there of it
            async for chunk in response.aiter_raw():
                body += chunk[:4096]
                if len(body) >= 4096:
                    break
        raise _Status(response.status_code, response.headers, body)


async def _bounded(chunks: Any) -> bytes:
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > _MOST_BYTES:
            raise _Nonsense(f"The answer has more than {_MOST_BYTES >> 20} MB.")
    return bytes(body)


def _wait(number: int, error: Exception) -> float:
    """Seconds until the next try: what the server asks for, else twice as long each time, and never in step."""
    asked = 0.0
    if isinstance(error.__cause__, _Status):
        asked = _retry_after(error.__cause__.headers.get("retry-after", ""))
    return min(asked or 0.25 * 2**number, _LONGEST_WAIT) * random.uniform(1.0, 1.5)


def _retry_after(said: str) -> float:
    """In seconds; 0 where nothing sensible was said."""
    try:
        return max(float(said), 0.0) if float(said) < 1e6 else 0.0
    except ValueError:
        pass
    try:
        return max(email.utils.parsedate_to_datetime(said).timestamp() - time.time(), 0.0)
    except (ValueError, OverflowError):
        return 0.0


def checked_url(url: str) -> str:
    """The address as the client wants it; one without a path means /v1."""
    try:
        parts = urlsplit(url.strip())
        wrong = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        raise InvalidInput("The server's address is no URL.", "Such as http://127.0.0.1:8000/v1.") from None
    if parts.username or parts.password or parts.query or parts.fragment:
        raise InvalidInput(
            "The server's address holds more than an address.",
            f"Give http://host:port/v1 alone, and a key in the environment ({KEY}).",
        )
    if wrong:
        raise InvalidInput(f"{url[:200]!r} is no address of a server.", "Such as http://127.0.0.1:8000/v1.")
    path = parts.path.rstrip("/") or "/v1"
    return f"{parts.scheme}://{parts.netloc}{path}"
