"""The server process: uvicorn with patience for nobody who is too slow."""

from __future__ import annotations

import os
import socket
import sys

import uvicorn

from seewhen.errors import InvalidInput
from seewhen.server.connections import places, protocol_of
from seewhen.server.guard import Guard
from seewhen.server.logs import limit_logs

_SWITCH = 0.0005  # seconds for which a thread may keep the others waiting: the inference thread comes back often
_WAITING = 2048  # connections that the system keeps until we accept them


class Server(uvicorn.Server):
    """uvicorn's, with more connections that wait to be accepted than are accepted in one go."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        sys.setswitchinterval(_SWITCH)
        await super().startup(sockets)
        for listening in (each for server in self.servers for each in server.sockets):
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                same.listen(_WAITING)


def make_server(app: Guard, host: str, port: int, log_level: str = "info") -> Server:
    """A uvicorn server for the application; `run()` serves until SIGINT or SIGTERM, then finishes what runs."""
    limits = app.settings.limits
    connections, backlog = places(limits)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=protocol_of(limits, connections),
        backlog=backlog,
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
    return Server(config)


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
    server = make_server(app, host, port, log_level)
    limit_logs()
    server.run()
