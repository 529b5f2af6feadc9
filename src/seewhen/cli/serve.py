"""`seewhen serve`: an OpenAI-compatible server."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Annotated

import typer

from seewhen.cli.options import REQUEST_HELP, Debug, LoadingFlags, Settings, given, refuse
from seewhen.errors import InvalidInput, MissingDependency

KEY_VARIABLE = "SEEWHEN_API_KEY"
UPSTREAM_KEY = "SEEWHEN_UPSTREAM_KEY"


def serve(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Hub id, checkpoint directory, photo, packaged (default); repeatable."),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on; any but loopback needs a key.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    upstream: Annotated[
        str | None,
        typer.Option("--upstream", help=f"Confirm what this server says; its key is in {UPSTREAM_KEY}."),
    ] = None,
    request: Annotated[
        list[str] | None, typer.Option("--request", help=f"With --upstream: {REQUEST_HELP}; may be repeated.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option("--method", "-M", help="As in `seewhen methods`; default: cai; with --upstream: confirm."),
    ] = None,
    settings: Settings = None,
    temperature: Annotated[
        float, typer.Option("--temperature", min=0, max=2, help="For requests that name none; 0 is greedy.")
    ] = 1.0,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help=f"File with the API key; or set {KEY_VARIABLE}.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option("--allow-host", help="A name this server goes by (Host header).")
    ] = None,
    allow_image_host: Annotated[
        list[str] | None, typer.Option("--allow-image-host", help="Fetch images from this host (https).")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", help="name=value, such as queue=64; docs/server.md lists them.")
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast/--no-fast", help="Captured steps that answers join and leave, where a GPU is."),
    ] = True,
    loading: LoadingFlags,
    log_level: Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")] = "info",
    debug: Debug = False,
) -> None:
    """Serve chat completions that the official OpenAI clients understand, and a page to ask with in a browser.

    seewhen serve

    seewhen serve --model llava-hf/llava-1.5-7b-hf --method cai:adaptive --port 8080

    seewhen serve --upstream http://127.0.0.1:8001/v1 --method confirm

    SEEWHEN_API_KEY=... seewhen serve --host 0.0.0.0 --allow-host gpu1.example.org --limit queue=64
    """
    for package in ("fastapi", "prometheus_client", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependency(package, "serve")
    import logging

    from seewhen.backbones.loading import check_name
    from seewhen.methods.grammar import check, choose
    from seewhen.served.extras import extras_of
    from seewhen.server.fetching import Fetcher
    from seewhen.server.limits import limits_of
    from seewhen.server.running import check_address
    from seewhen.server.running import serve as run
    from seewhen.server.settings import Settings as ServerSettings
    from seewhen.server.settings import check_key, host_names, model_names, read_key

    # What is wrong is found before torch is imported, as far as it can be.
    if log_level not in ("debug", "info", "warning", "error"):
        raise InvalidInput(f"There is no log level {log_level!r}.", "Use debug, info, warning or error.")
    limits = limits_of(limit or [])
    fetcher = Fetcher.of(allow_image_host or [], limits)
    key = read_key(api_key_file, os.environ.get(KEY_VARIABLE))
    check_key(host, key)
    if method is None:
        method = "cai" if upstream is None else "confirm"
    check([method], settings or [])
    loading.loading()
    if upstream is not None and model:
        raise InvalidInput("--upstream serves no model of its own.", "Leave --model out.")
    if upstream is not None:
        from seewhen.served.server import checked_url

        checked_url(upstream)
        refuse(given(loading, LoadingFlags), "does nothing with --upstream: no model is loaded.", "Leave it out.")
    elif request:
        raise InvalidInput("--request needs a server to ask.", "Add --upstream URL.")
    extras = extras_of(request or [])
    names = {} if upstream is not None else model_names(model or ["packaged"])
    for path in names.values():
        check_name(path, loading.revision)
    check_address(host, port)

    logging.basicConfig(level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    configured = ServerSettings(
        method=choose([method], settings or [])[0],
        limits=limits,
        fetcher=fetcher,
        host=host,
        key=key,
        names=host_names(allow_host or []),
        temperature=temperature,
    )
    if upstream is not None:
        from seewhen.served.keys import checked_key
        from seewhen.server.proxy import create_proxy

        their_key = checked_key(os.environ.get(UPSTREAM_KEY, ""), UPSTREAM_KEY) or None
        run(create_proxy(upstream, their_key, configured, extras), host, port, log_level)
        return

    from seewhen.asking.opening import open_model
    from seewhen.server.app import create_app
    from seewhen.server.engine import Engine

    engines = {
        name: Engine(
            name, open_model(path, loading.loading()), limits, configured.metrics, "auto" if fast else "off"
        )
        for name, path in names.items()
    }
    run(create_app(engines, configured), host, port, log_level)
