"""Connections: a clock for every silence of a client, and a place for newcomers when all are taken."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from itertools import chain

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from seewhen.server.limits import Limits

log = logging.getLogger("seewhen.server")

_SPARE = 64  # descriptors for all that is no connection: files, pipes to the processes that read pictures
_LARGEST_BACKLOG = 512
_READ = 16 * 1024  # bytes that are taken off a connection before it is others' turn


def places(limits: Limits) -> tuple[int, int]:
    """How many connections fit under the system's limit on open files, and how many may be accepted in one go.

    The event loop accepts a whole backlog before it looks at one of them; aborted ones close rounds later.
    """
    free = _free_descriptors()
    connections = max(1, min(limits.connections, free * 3 // 4))
    return connections, max(1, min(_LARGEST_BACKLOG, (free - connections) // 4))


def _free_descriptors() -> int:
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return 2**20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2**20 if soft == resource.RLIM_INFINITY else soft
    return most - len(os.listdir("/dev/fd")) - _SPARE


class Lobby:
    """Connections whose client is awaited, oldest first. When all places are taken, the oldest makes room."""

    def __init__(self, places: int) -> None:
        self._places = places
        # Those that had an answer give up their place last.
        self._strangers: dict[Timed, None] = {}
        self._known: dict[Timed, None] = {}

    def enter(self, one: Timed) -> None:
        """A new connection; where there is no place for it, the one that was silent longest is dropped."""
        if len(one.connections) > self._places:
            log.warning("all %d connections are in use: the one that is silent longest is dropped", self._places)
            oldest = next(chain(self._strangers, self._known), one)
            self.leave(oldest)
            oldest.transport.abort()
        if not one.transport.is_closing():
            self.wait(one)

    def wait(self, one: Timed) -> None:
        """It is its client's turn."""
        if one not in self._strangers and one not in self._known:
            (self._known if one.known else self._strangers)[one] = None

    def leave(self, one: Timed) -> None:
        """It is our turn, or it is over."""
        self._strangers.pop(one, None)
        self._known.pop(one, None)


class Timed(H11Protocol):
    """uvicorn's protocol with clocks: for headers that do not come, and for clients that do not read.

    Bodies have their clock in the guard, idle connections theirs in uvicorn.
    """

    limits: Limits
    lobby: Lobby
    known = False  # whether a request of this client was answered
    _reading: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    @property
    def awaited(self) -> bool:
        """Whether nothing can happen until the client sends something."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or (cycle.more_body and not cycle.response_started)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A place, and a clock for the first request."""
        super().connection_made(transport)
        # asyncio's 256 KiB can be 40,000 chunks of a byte each, which take a second to parse.
        transport.max_size = _READ  # type: ignore[attr-defined]
        # Small pieces go out at once. asyncio sees to it for sockets that it has made itself, not for given ones.
        opened = transport.get_extra_info("socket")
        if opened is not None and opened.family != getattr(socket, "AF_UNIX", None):
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.lobby.enter(self)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Whatever it is, it does not set the clocks back."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """The next request is awaited, or the end of the connection."""
        self.known = self.known or bool(self.scope["state"].get("answered"))
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is awaited any more."""
        self.lobby.leave(self)
        for timer in (self._reading, self._writing):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More is written than the client takes."""
        super().pause_writing()
        self._hurry()

    def resume_writing(self) -> None:
        """It took enough of it."""
        if self._writing is not None and not self.transport.is_closing():
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Idle for too long."""
        super().timeout_keep_alive_handler()
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP."""
        super().send_400_response(msg)
        self._watch()

    def shutdown(self) -> None:
        """The server ends: who has not sent the whole request yet is not waited for."""
        if self.awaited and self.cycle is not None and not self.cycle.response_complete:
            self._dismiss(b"503 Service Unavailable")
        else:
            super().shutdown()
        self._watch()

    def _watch(self) -> None:
        """Clocks and lobby as the state of the connection wants them."""
        if self.transport.is_closing():
            self.lobby.leave(self)
            self._hurry()
            return
        if self.awaited:
            self.lobby.wait(self)
        else:
            self.lobby.leave(self)
        headers = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
        if headers and self._reading is None:
            self._reading = self.loop.call_later(self.limits.header_seconds, self._too_slow)
        elif not headers and self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _hurry(self) -> None:
        """Who takes nothing for this long is not waited for; an orderly close would wait for ever."""
        if self._writing is None:
            self._writing = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def _too_slow(self) -> None:
        self._reading = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self._dismiss(b"408 Request Timeout")
            self._watch()

    def _dismiss(self, status: bytes) -> None:
        self.transport.write(b"HTTP/1.1 " + status + b"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        self.transport.close()


def protocol_of(limits: Limits, connections: int) -> type[Timed]:
    """The protocol of one server with its limits and its lobby."""
    return type("Timed", (Timed,), {"limits": limits, "lobby": Lobby(connections)})
