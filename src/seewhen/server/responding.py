"""How every answer leaves: whole or streamed, and given up with its client. Errors have one shape."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from seewhen.server.failures import ApiError, client_gone, internal
from seewhen.server.pending import Pending

log = logging.getLogger("seewhen.server")


async def json_body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # also keeps forms of other sites' pages out
        raise ApiError(415, "not_json", "The body must be JSON.", "Set Content-Type: application/json.")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ApiError(415, "not_json", "The body is packed.", "Send it without Content-Encoding.")
    return await request.body()


async def respond(request: Request, completion: Pending) -> Response:
    """Wait for the answer, and give up with the client."""
    gone = asyncio.create_task(disconnected(request))
    try:
        await _first(completion.prepare(), gone, completion)
        await _first(completion.started(), gone, completion)
        if completion.stream:
            return StreamingResponse(_events(completion), media_type="text/event-stream")
        whole = await _first(completion.whole(), gone, completion)
        completion.over()
        return Response(whole.model_dump_json(), media_type="application/json")
    except asyncio.CancelledError:
        completion.cancel()
        raise
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


async def disconnected(request: Request) -> None:
    """Returns when the client is gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(work: Any, gone: asyncio.Task[None], completion: Pending) -> Any:
    """The result of `work`, unless the client goes away before."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        try:
            return task.result()
        finally:
            del task  # or its exception, this frame and the request's pictures would hold each other
    task.cancel()
    completion.cancel()
    completion.settings.metrics.cancelled()
    raise client_gone()


async def _events(completion: Pending) -> AsyncIterator[bytes]:
    """Server-sent events. An error after the first byte is an event of its own."""
    complete = False
    try:
        async for chunk in completion.chunks():
            data = chunk if isinstance(chunk, bytes) else chunk.model_dump_json(exclude_none=True).encode()
            yield b"data: " + data + b"\n\n"
        complete = True
        yield b"data: [DONE]\n\n"
    except ApiError as error:
        complete = True
        yield b"data: " + json.dumps(error.body()).encode() + b"\n\n"
    except Exception:
        log.exception("%s failed while streaming", completion.id)
        yield b"data: " + json.dumps(internal().body()).encode() + b"\n\n"
    finally:
        completion.cancel()
        completion.over()
        if not complete:
            completion.settings.metrics.cancelled()


async def told(request: Request, error: Exception) -> Response:
    """Every error in the same shape."""
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        headers = dict(error.headers or {})
        what, hint = (
            "There is nothing here.",
            "Base URLs end in /v1; chat completions are at /v1/chat/completions.",
        )
        if code == "method_not_allowed":
            what = f"{request.url.path} does not take {request.method}."
            hint = f"It takes {headers.get('Allow', 'another method')}."
        error = ApiError(error.status_code, code, what, hint)
        return JSONResponse(error.body(), error.status, headers)
    if isinstance(error, RequestValidationError):
        name = str(error.errors()[0]["loc"][-1])
        error = ApiError(
            400, "invalid_request", f"{name!r} has a value that it cannot take.", "See /openapi.json."
        )
    if not isinstance(error, ApiError):  # a defect of ours, which the guard logs
        error = internal()
    return JSONResponse(error.body(), error.status, dict(error.headers()))
