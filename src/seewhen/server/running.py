"""The server process: uvicorn with patience for nobody who is too slow."""

from __future__ import annotations

import asyncio
import os
import socket

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from seewhen.errors import InvalidInput
from seewhen.server.guard import Guard
from seewhen.server.limits import Limits


def protocol_of(limits: Limits) -> type[H11Protocol]:
    """uvicorn's protocol, with clocks for headers that never end and for clients that do not read."""

    class Timed(H11Protocol):
        _reading: asyncio.TimerHandle | None = None
        _writing: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > 2 * limits.requests:
                transport.abort()
                return
            self._watch_reading()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_reading()

        def connection_lost(self, exc: Exception | None) -> None:
            for timer in (self._reading, self._writing):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            # A reader that takes nothing for this long is not waited for; closing would wait for it, too.
            self._writing = self.loop.call_later(limits.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            if self._writing is not None:
                self._writing.cancel()
                self._writing = None
            super().resume_writing()

        def _watch_reading(self) -> None:
            """A clock runs while the headers of a request are awaited; bodies have theirs in the guard."""
            waiting = self.conn.their_state is h11.IDLE and self.timeout_keep_alive_task is None
            if waiting and self._reading is None:
                self._reading = self.loop.call_later(limits.read_seconds, self._too_slow)
            elif not waiting and self._reading is not None:
                self._reading.cancel()
                self._reading = None

        def _too_slow(self) -> None:
            self._reading = None
            if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
                head = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                self.transport.write(head)
                self.transport.close()

    return Timed


def make_server(app: Guard, host: str, port: int, log_level: str = "info") -> uvicorn.Server:
    """A uvicorn server for the application; `run()` serves until SIGINT or SIGTERM, then finishes what runs."""
    limits = app.settings.limits
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol_of(limits),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_level=log_level,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=limits.wall_seconds,
    )
    return uvicorn.Server(config)


def check_address(host: str, port: int) -> None:
    """Refuse an address that cannot be listened on, before models are loaded for it."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        socket.create_server(address[:2], family=family).close()
    except OSError as error:
        # asyncio and socket add words of their own to `strerror`; getaddrinfo has numbers of its own.
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise InvalidInput(
            f"Cannot listen on {host}, port {port}: {reason}.",
            "Name another --port (0 takes a free one) or --host.",
        ) from None


def serve(app: Guard, host: str, port: int, log_level: str = "info") -> None:
    """Serve until told to stop."""
    make_server(app, host, port, log_level).run()
