"""A server in front of another, for the time of a context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai

import seewhen
from seewhen.server.fetching import Fetcher
from seewhen.server.limits import Limits
from seewhen.server.proxy import create_proxy
from seewhen.server.settings import Settings
from server.loopback import listening

METHOD = "confirm:coco:threshold=0.5"


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs."""

    url: str
    settings: Settings

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)


@contextmanager
def proxying(
    url: str, their_key: str | None = None, extras: dict[str, Any] | None = None, **settings: Any
) -> Iterator[Proxy]:
    limits = settings.pop("limits", Limits())
    method = seewhen.method(settings.pop("method", METHOD))
    made = Settings(method=method, limits=limits, fetcher=Fetcher.of([], limits), **settings)
    with listening(create_proxy(url, their_key, made, extras)) as (port, _):
        yield Proxy(f"http://127.0.0.1:{port}", made)
