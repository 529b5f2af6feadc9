"""`seewhen serve --upstream`: a server in front of another.

Answers about images are confirmed on the way; everything else under /v1/ passes as it is.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

from seewhen.errors import InvalidInput
from seewhen.methods.confirm import Confirm
from seewhen.served.remote import Remote
from seewhen.served.server import Patience, Server, checked_url
from seewhen.server import replies
from seewhen.server.confirming import SHAPING, Confirmation, Passing, understood
from seewhen.server.failures import ApiError
from seewhen.server.guard import Guard
from seewhen.server.metrics import CONTENT_TYPE
from seewhen.server.responding import respond, told
from seewhen.server.settings import Settings
from seewhen.server.upstream import PREFIX, Upstream

_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"]
_PROBES = ["GET", "HEAD"]
_KEPT = 64  # served models, and clients' keys, that are known at a time
_TRIES = 3  # of each request to the other server
_CHAT = f"{PREFIX}chat/completions"


class UpstreamModels:
    """The served models that were asked for; what each offers is found out once."""

    def __init__(self, url: str, settings: Settings, extras: Mapping[str, Any] | None = None) -> None:
        wall = float(settings.limits.wall_seconds)
        self._url, self._lock, self._extras = url, threading.Lock(), dict(extras or {})
        self._patience = Patience(wall, wall, _TRIES, max(settings.limits.queue, 1))
        self._servers: OrderedDict[str, Server] = OrderedDict()  # by key: one, unless clients bring their own
        self._remotes: OrderedDict[tuple[str, str, str], Remote] = OrderedDict()

    def remote(self, model: str, key: str, shaping: Mapping[str, Any] | None = None) -> Remote:
        """The model of this name for whoever has this key, asked with these options."""
        name = (model, key, json.dumps(shaping or {}, sort_keys=True))
        with self._lock:
            server = self._servers.pop(key, None) or Server(self._url, patience=self._patience, key=key)
            self._servers[key] = server
            self._forget_servers()
            remote = self._remotes.pop(name, None)
            if remote is None or remote.server is not server:
                remote = Remote(server, model, self._extras)
            self._remotes[name] = remote
            if len(self._remotes) > _KEPT:
                self._remotes.popitem(last=False)
            return remote

    def _forget_servers(self) -> None:
        """The oldest ones, but for those that somebody waits for."""
        idle = [key for key, server in self._servers.items() if not server.busy][:-1]
        for key in idle[: max(len(self._servers) - _KEPT, 0)]:
            self._servers.pop(key).close()

    def close(self) -> None:
        """Ends all connections."""
        for server in self._servers.values():
            server.close()


def create_proxy(url: str, key: str | None, settings: Settings, extras: Mapping[str, Any] | None = None) -> Guard:
    """The guarded application in front of the server at `url`, whose key is `key`.

    `extras` go along with every request of our own; what passes as it is stays as it is.
    """
    if not isinstance(settings.method, Confirm) and settings.method.name != "regular":
        raise InvalidInput(
            f"{settings.method.name} works inside a model, and --upstream has none.", "Use confirm or regular."
        )
    url = checked_url(url)
    upstream, known = Upstream(url, key, settings), UpstreamModels(url, settings, extras)
    # One for each request: who waited for a thread would not hear that the time is over.
    workers = ThreadPoolExecutor(settings.limits.requests, thread_name_prefix="seewhen-confirm")

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        upstream.start()
        yield
        await upstream.close()
        await asyncio.to_thread(known.close)  # what is still asked is given up, so that the threads end
        await asyncio.to_thread(workers.shutdown, True, cancel_futures=True)
        await settings.darkroom.close()

    app = FastAPI(title="seewhen", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    for kind in (ApiError, HTTPException, Exception):
        app.add_exception_handler(kind, told)

    @app.api_route("/readyz", methods=_PROBES, response_model=replies.Health)
    @app.api_route("/healthz", methods=_PROBES, response_model=replies.Health)
    async def healthz() -> replies.Health:
        """The process answers. Strangers may ask this, so the other server is not asked."""
        return replies.Health(status="ok")

    @app.api_route("/metrics", methods=_PROBES)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(settings.metrics.text(), media_type=CONTENT_TYPE)

    @app.api_route(PREFIX + "{rest:path}", methods=_METHODS)
    async def anything(request: Request) -> Response:
        """Confirmed where it can be, passed where not."""
        body = await request.body()
        if request.method != "POST" or request.scope["path"] != _CHAT:
            return await upstream.passed(request, body)
        asked = await asyncio.to_thread(understood, body, settings)  # a body may be large
        if isinstance(asked, Passing):
            return await upstream.passed(request, asked.body, asked.why)
        shaping = {name: value for name, value in asked.along.items() if name in SHAPING}
        remote = known.remote(asked.model, upstream.key(request.headers) or "", shaping)
        return await respond(request, Confirmation(asked, remote, workers, settings, request.state.request_id))

    return Guard(app, settings)
