"""The application: routes and the OpenAPI description."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.exceptions import HTTPException

from seewhen.server import page, replies
from seewhen.server.checking import Inspection
from seewhen.server.choosing import offered, public
from seewhen.server.completing import Completion
from seewhen.server.engine import Engine
from seewhen.server.failures import ApiError
from seewhen.server.guard import App, Guard, Receive, Send
from seewhen.server.metrics import CONTENT_TYPE
from seewhen.server.responding import json_body, respond, told
from seewhen.server.schema import ChatRequest, CheckRequest, parse
from seewhen.server.settings import Settings

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
        await settings.darkroom.close()

    app = FastAPI(
        title="seewhen",
        version="1",
        description="OpenAI-compatible chat completions with hallucination-reducing decoding methods.",
        lifespan=life,
        docs_url=None,  # those pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.engines, app.state.settings = engines, settings
    for kind in (ApiError, HTTPException, Exception, RequestValidationError):
        app.add_exception_handler(kind, told)
    _add_routes(app, engines, settings)
    _describe(app, engines, settings)
    return Guard(_with_head(app), settings)


def _with_head(app: App) -> App:
    """Health checks and proxies ask with HEAD: what GET answers, whose body the protocol then leaves out."""

    async def answered(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}  # a copy: the protocol still sees HEAD in its own
        await app(scope, receive, send)

    return answered


def _add_routes(app: FastAPI, engines: Mapping[str, Engine], settings: Settings) -> None:
    created = int(time.time())

    def card(engine: Engine) -> replies.ModelCard:
        return replies.ModelCard(
            id=engine.name,
            created=created,
            seewhen={
                "default_method": public(settings.method),
                "context": engine.decoder.context,
                "shipped": engine.shipped,
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
        asked = await asyncio.to_thread(
            parse, await json_body(request), ChatRequest, settings.limits.text_characters
        )
        completion = Completion(asked, _engine(engines, asked.model), settings, request.state.request_id)
        return await respond(request, completion)

    @app.post("/v1/check", response_model=replies.CheckReply, responses=_ERRORS)
    async def check(request: Request) -> Response:
        """Ask the model about every object that a text names."""
        asked = await asyncio.to_thread(
            parse, await json_body(request), CheckRequest, settings.limits.text_characters
        )
        inspection = Inspection(asked, _engine(engines, asked.model), settings, request.state.request_id)
        return await respond(request, inspection)

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
        return replies.MethodList(data=offered(settings.method))

    @app.get("/v1/scenes/{split}/{index}", response_model=replies.SceneReply, responses=_ERRORS)
    async def scene(split: Split, index: Annotated[int, Path(ge=0, le=9999)]) -> replies.SceneReply:
        """A drawn scene of the package, for trying things out: its picture and what is really in it."""
        return replies.SceneReply(**await asyncio.to_thread(page.scene, split, index))

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def live() -> Response:
        """The page to ask with. Nothing secret is in it, so it needs no key; what it calls does."""
        html, policy = page.live_page()
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    @app.get("/viewer.html", response_class=PlainTextResponse, include_in_schema=False)
    async def viewer() -> Response:
        """For the page above: the viewer as a file, without an answer."""
        return PlainTextResponse(page.empty_page())

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
        return Response(settings.metrics.text(), media_type=CONTENT_TYPE)


def _engine(engines: Mapping[str, Engine], name: str) -> Engine:
    if name not in engines:
        raise ApiError(
            404, "model_not_found", "There is no such model here.", f"Models: {', '.join(engines)}.", param="model"
        )
    return engines[name]


def _describe(app: FastAPI, engines: Mapping[str, Engine], settings: Settings) -> None:
    """The request is parsed from its bytes, so its schema is added by hand."""
    reference = "#/components/schemas/{model}"
    stock = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        description = stock()
        components = description["components"]
        for methods in description["paths"].values():
            for route in methods.values():
                route["responses"].pop("422", None)  # FastAPI's own; here a wrong value gets 400 like all else
        for path, kind in (("/v1/chat/completions", ChatRequest), ("/v1/check", CheckRequest)):
            schema = kind.model_json_schema(ref_template=reference)
            schema["properties"]["model"]["enum"] = list(engines)
            components["schemas"].update(schema.pop("$defs", {}) | {kind.__name__: schema})
            description["paths"][path]["post"]["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": {"$ref": reference.format(model=kind.__name__)}}},
            }
        if settings.key is not None:
            components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
            description["security"] = [{"key": []}]
        return description

    app.openapi = openapi  # type: ignore[method-assign]
