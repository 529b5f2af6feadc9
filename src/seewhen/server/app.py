"""The application: routes and the OpenAPI description."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, StreamingResponse
from starlette.exceptions import HTTPException

from seewhen.server import page, replies
from seewhen.server.choosing import catalogue, public
from seewhen.server.completing import Completion
from seewhen.server.engine import Engine
from seewhen.server.failures import ApiError, internal
from seewhen.server.guard import Guard
from seewhen.server.schema import ChatRequest, parse
from seewhen.server.settings import Settings

log = logging.getLogger("seewhen.server")

Split = Literal["val", "test", "shifted"]

_ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": replies.ErrorReply} for status in (400, 401, 403, 404, 408, 413, 415, 421, 429, 500, 503)
}


def create_app(engines: Mapping[str, Engine], settings: Settings) -> Guard:
    """The guarded application. Engines are started with it and finish their work at its end."""

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        for engine in engines.values():
            engine.start()
        yield
        for engine in engines.values():
            await asyncio.to_thread(engine.close, settings.limits.wall_seconds)

    app = FastAPI(
        title="seewhen",
        version="1",
        description="OpenAI-compatible chat completions with hallucination-reducing decoding methods.",
        lifespan=life,
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.engines, app.state.settings = engines, settings
    app.add_exception_handler(ApiError, _told)
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(RequestValidationError, _told)
    _add_routes(app, engines, settings)
    _describe(app, engines, settings)
    return Guard(app, settings)


def _add_routes(app: FastAPI, engines: Mapping[str, Engine], settings: Settings) -> None:
    created = int(time.time())

    def card(engine: Engine) -> replies.ModelCard:
        return replies.ModelCard(
            id=engine.name,
            created=created,
            seewhen={
                "default_method": public(settings.method),
                "context": engine.decoder.context,
                "trace_tokens": min(settings.limits.trace_tokens, settings.limits.max_tokens),
            },
        )

    @app.post(
        "/v1/chat/completions",
        response_model=None,
        responses={200: {"model": replies.ChatCompletion, "content": {"text/event-stream": {}}}, **_ERRORS},
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation about images."""
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # also keeps forms of other sites' pages out
            raise ApiError(415, "not_json", "The body must be JSON.", "Set Content-Type: application/json.")
        asked = parse(await request.body())
        completion = Completion(asked, _engine(engines, asked.model), settings, request.state.request_id)
        await completion.prepare()
        return await _respond(request, completion)

    @app.get("/v1/models", response_model=replies.ModelList, responses=_ERRORS)
    async def models() -> replies.ModelList:
        """The models of this server."""
        return replies.ModelList(data=[card(engine) for engine in engines.values()])

    @app.get("/v1/models/{model:path}", response_model=replies.ModelCard, responses=_ERRORS)
    async def model(model: str) -> replies.ModelCard:
        """One model."""
        return card(_engine(engines, model))

    @app.get("/v1/methods", response_model=replies.MethodList, responses=_ERRORS)
    async def methods() -> replies.MethodList:
        """The methods a request may name, with their presets and parameters."""
        return replies.MethodList(data=list(catalogue()))

    @app.get("/v1/scenes/{split}/{index}", response_model=replies.SceneReply, responses=_ERRORS)
    async def scene(split: Split, index: Annotated[int, Path(ge=0, le=9999)]) -> replies.SceneReply:
        """A drawn scene of the package, for trying things out: its picture and what is really in it."""
        return replies.SceneReply(**await asyncio.to_thread(page.scene, split, index))

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def live() -> Response:
        """The page to ask with. Nothing secret is in it, so it needs no key; what it calls does."""
        html, policy = page.live_page()
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    @app.get("/healthz", response_model=replies.Health, responses=_ERRORS)
    async def healthz() -> replies.Health:
        """The process answers."""
        return replies.Health(status="ok")

    @app.get("/readyz", response_model=replies.Health, responses=_ERRORS)
    async def readyz() -> replies.Health:
        """Every model's inference thread runs."""
        for engine in engines.values():
            if not engine.alive:
                raise ApiError(503, "model_not_running", "A model is not running.", "Restart the server.")
        return replies.Health(status="ready")

    @app.get("/metrics", response_class=PlainTextResponse, responses=_ERRORS)
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(settings.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _engine(engines: Mapping[str, Engine], name: str) -> Engine:
    if name not in engines:
        raise ApiError(
            404, "model_not_found", "There is no such model here.", f"Models: {', '.join(engines)}.", param="model"
        )
    return engines[name]


async def _respond(request: Request, completion: Completion) -> Response:
    """Wait for the answer, and give up with the client."""
    gone = asyncio.create_task(_disconnected(request))
    try:
        await _first(completion.started(), gone, completion)
        if completion.request.stream:
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


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _first(work: Any, gone: asyncio.Task[None], completion: Completion) -> Any:
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
    # Nobody reads this; 499 is what the counters show.
    raise ApiError(499, "client_gone", "The client went away.", "")


async def _events(completion: Completion) -> AsyncIterator[bytes]:
    """Server-sent events. An error after the first byte is an event of its own."""
    complete = False
    try:
        async for chunk in completion.chunks():
            yield b"data: " + chunk.model_dump_json(exclude_none=True).encode() + b"\n\n"
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


async def _told(request: Request, error: Exception) -> Response:
    """Every error in the same shape."""
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        headers = dict(error.headers or {})
        error = ApiError(error.status_code, code, "There is nothing here.", "See /openapi.json.")
        return JSONResponse(error.body(), error.status, headers)
    if isinstance(error, RequestValidationError):
        name = str(error.errors()[0]["loc"][-1])
        error = ApiError(
            400, "invalid_request", f"{name!r} has a value that it cannot take.", "See /openapi.json."
        )
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, dict(error.headers()))


def _describe(app: FastAPI, engines: Mapping[str, Engine], settings: Settings) -> None:
    """The request is parsed from its bytes, so its schema is added by hand."""
    reference = "#/components/schemas/{model}"
    stock = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        description = stock()
        schema = ChatRequest.model_json_schema(ref_template=reference)
        schema["properties"]["model"]["enum"] = list(engines)
        components = description["components"]
        for methods in description["paths"].values():
            for route in methods.values():
                route["responses"].pop("422", None)  # FastAPI's own; here a wrong value gets 400 like all else
        components["schemas"].update(schema.pop("$defs", {}) | {"ChatRequest": schema})
        description["paths"]["/v1/chat/completions"]["post"]["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": reference.format(model="ChatRequest")}}},
        }
        if settings.key is not None:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            description["security"] = [{"key": []}]
        return description

    app.openapi = openapi  # type: ignore[method-assign]
