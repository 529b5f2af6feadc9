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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from seewhen.errors import InvalidInput, MissingDependency, SeewhenError
from seewhen.served.keys import checked_key, checked_name, hidden, hidden_in_answer
from seewhen.served.replies import Completion, Usage, read_reply, words_of

if TYPE_CHECKING:
    from openai import AsyncOpenAI

KEY = "OPENAI_API_KEY"
_MOST_BYTES = 16 << 20  # of an answer
_MOST_QUOTED = 300  # characters of a server's own words
_LONGEST_WAIT = 60.0  # between two tries, whatever the server asks for; up to half of it is added at random
_TRIES_OF_NONSENSE = 2  # a slip passes, a wrong address does not
_TRIES_OF_SILENCE = 2  # where nothing was ever heard of the server
_UNABLE = "not supported"  # what llama.cpp says of pictures with the status of its own failures
_RIGHT = "Is this the address of an OpenAI-compatible server?"
_CLOSING = 5.0  # seconds until what hangs is left alone


class ServerFailed(SeewhenError):
    """A server that cannot be reached, refuses us, or answers nonsense. `status` is its own, if it gave one."""

    status: int | None = None


class ServerLate(ServerFailed):
    """A server that gave no answer in time."""


class RequestRefused(InvalidInput):
    """A server that refuses this one request: too large, too long, an option it does not have."""

    status: int | None = None


class Unreadable(InvalidInput):
    """An answer to this one request that is none: not JSON, another form, too large."""


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
        self.url, self.key_from = checked_url(url), checked_name(key_from)
        self.patience = patience or Patience()
        self.meter = Meter()  # of everything
        given = os.environ.get(key_from, "") if key is None else key
        self._key = checked_key(given, key_from if key is None else "the request")
        if key_from != KEY and not self._key:
            raise InvalidInput(f"The environment has no key in {key_from}.", "Set it, or leave the name out.")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        self._closed = self._heard = False
        self._under_way: set[Future[list[Completion]]] = set()

    def __repr__(self) -> str:
        return f"Server({self.url!r})"

    def __reduce__(self) -> Any:
        raise TypeError("A server is not pickled: it holds a key.")

    def has_key_in(self, text: str) -> bool:
        """Whether the key can be read there."""
        return hidden_in_answer(text.encode(), self._key) != text.encode()

    @property
    def busy(self) -> bool:
        """Whether somebody waits for an answer."""
        return bool(self._under_way)

    def start(self, requests: Sequence[Mapping[str, Any]], meter: Meter) -> Future[list[Completion]]:
        """The answers to all requests, asked at once. The first failure, and cancelling, gives the others up."""
        with self._starting:
            if self._closed:
                raise ServerFailed(f"The connections to {self.url} were closed.", "Make another `remote`.")
            asked = asyncio.run_coroutine_threadsafe(self._ask(requests, meter), self._running())
            self._under_way.add(asked)
        asked.add_done_callback(self._under_way.discard)
        return asked

    def ask(self, requests: Sequence[Mapping[str, Any]], meter: Meter) -> list[Completion]:
        """The same, waited for."""
        asked = self.start(requests, meter)
        try:
            return asked.result()
        except CancelledError:
            raise ServerFailed(f"The connections to {self.url} were closed.", "Ask again.") from None
        finally:
            asked.cancel()  # where Ctrl-C ended the waiting

    def close(self) -> None:
        """Ends the connections, and gives up what is still asked."""
        with self._starting:
            loop, self._loop, self._closed = self._loop, None, True
        if loop is not None:
            with suppress(TimeoutError):
                asyncio.run_coroutine_threadsafe(self._end(), loop).result(2 * _CLOSING)
            loop.call_soon_threadsafe(loop.stop)

    # -- on the loop -----------------------------------------------------------------------------------------

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._client = self._connected()
            self._places = asyncio.Semaphore(self.patience.at_once)
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), name="seewhen-served", daemon=True).start()
        return self._loop

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=_CLOSING)
        await asyncio.wait_for(self._client.close(), _CLOSING)
        await asyncio.sleep(0)  # a round of the loop in which sockets are closed

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
                seconds = min(self.patience.timeout, self.patience.deadline - spent)
                try:
                    body = await self._once(request, seconds, meter)
                    found = read_reply(hidden_in_answer(body, self._key))
                except Exception as error:
                    cause = _cause(error)
                    self._heard = self._heard or isinstance(cause, _Status)
                    failure, tries = self._understood(cause, seconds)
                    wait = _wait(number, cause)
                else:
                    self._heard = True
                    self._count(found.usage, meter)
                    return found
            spent += time.monotonic() - started + wait
            if number >= tries or spent >= self.patience.deadline:
                raise failure
            await asyncio.sleep(wait)
        raise AssertionError("there is at least one try")

    def _count(self, usage: Usage, meter: Meter) -> None:
        for each in (self.meter, meter):
            each.add(usage)

    async def _once(self, request: Mapping[str, Any], seconds: float, meter: Meter) -> bytes:
        known = {name: value for name, value in request.items() if name in ("model", "messages")}
        rest = {name: value for name, value in request.items() if name not in known}
        self._count(Usage(requests=1), meter)
        async with asyncio.timeout(seconds):
            create = self._client.chat.completions.with_streaming_response.create
            async with create(**known, extra_body=rest) as response:
                return await _bounded(response.iter_bytes())

    def _understood(self, cause: BaseException, seconds: float) -> tuple[SeewhenError, int]:
        """The error in our own words, and how often such a request is tried."""
        most = self.patience.tries
        silent = most if self._heard else min(_TRIES_OF_SILENCE, most)
        if isinstance(cause, _Status):
            failure, passing = self._refused(cause)
            failure.status = cause.status
            return failure, most if passing else 1
        if isinstance(cause, InvalidInput | _Nonsense):
            said, hint = (cause.message, cause.hint) if isinstance(cause, InvalidInput) else (str(cause), _RIGHT)
            return Unreadable(f"{self.url}: {self._quoted(said)}", hint), min(_TRIES_OF_NONSENSE, most)
        kind = type(cause).__name__
        if isinstance(cause, TimeoutError) or "Timeout" in kind:
            told = f"{self.url} gave no answer within {seconds:.3g} seconds."
            return ServerLate(told, "Is it overloaded? Ask for less at once, or give it more time."), silent
        reason = self._quoted(str(cause.__cause__ or cause) or kind)
        if _broke_off(cause):
            told = f"{self.url} broke off before its answer was whole: {_ended(reason)}"
            return ServerFailed(told, "It may have been restarted: try again."), most
        told = f"{self.url} cannot be reached: {_ended(reason)}"
        return ServerFailed(told, "Check the address, and that a server runs there."), silent

    def _refused(self, error: _Status) -> tuple[ServerFailed | RequestRefused, bool]:
        """The same for a status, and whether it may pass."""
        status, said = error.status, self._quoted(words_of(error.body))
        told = _ended(f"{self.url} answered {status}: {said}" if said else f"{self.url} answered {status}")
        if 300 <= status < 400:
            where = self._quoted(error.headers.get("location", ""))
            told = f"{self.url} redirects to {where or 'nowhere'}."
            return ServerFailed(told, "Redirects are not followed: give the real address."), False
        if status in (401, 403):
            return ServerFailed(told, f"Put a valid key into the environment: {KEY}, or name another."), False
        if status == 404:
            return ServerFailed(told, "Check the address (…/v1) and the name of the served model."), False
        unable = status == 501 or (status == 500 and _UNABLE in said.lower())
        if status in (408, 409, 425, 429) or (status >= 500 and not unable):
            asked = _retry_after(error.headers.get("retry-after", ""))
            later = f"in {asked:.0f} seconds, as it asks" if asked >= 1 else "later"
            return ServerFailed(told, f"It may pass: try again {later}, or ask for less at once."), True
        return RequestRefused(told, "The server does not take this request."), False

    def _quoted(self, text: str) -> str:
        """A stranger's words: short, in one line, and never with our key in them."""
        text = " ".join(hidden(text, self._key).split())
        return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]} ..."


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


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


def _ended(text: str) -> str:
    """With a full stop, as another sentence follows."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what is behind it: the client wraps whatever is raised while it reads a response."""
    while error is not None:
        yield error
        error = error.__cause__


def _cause(error: BaseException) -> BaseException:
    """What of that is our own, or the error itself."""
    return next((each for each in _behind(error) if isinstance(each, _Status | _Nonsense)), error)


def _broke_off(error: BaseException) -> bool:
    """Whether there was a connection."""
    lost = ("RemoteProtocolError", "ReadError", "WriteError")
    return any(type(each).__name__ in lost for each in _behind(error))


def _wait(number: int, cause: BaseException) -> float:
    """Seconds until the next try: what the server asks for, else twice as long each time, and never in step."""
    asked = _retry_after(cause.headers.get("retry-after", "")) if isinstance(cause, _Status) else 0.0
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
