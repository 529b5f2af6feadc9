"""What the server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)

__all__ = ["CONTENT_TYPE", "Metrics"]

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64)

disable_created_metrics()  # a second series for each of the first


class Metrics:
    """Everything the server counts, in a registry of its own; the event loop and inference threads call it."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"seewhen_{name}", about, labels, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(f"seewhen_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"seewhen_{name}", about, buckets=bounds, registry=registry)

        self._requests = counter("requests_total", "Responses by path and status.", "path", "status")
        self._prompt_tokens = counter("prompt_tokens_total", "Tokens of prompts, images included.")
        self._generated = counter("generated_tokens_total", "Tokens of answers, by method.", "method")
        self._gated = counter("gated_tokens_total", "Tokens of answers of methods with a gate.", "method")
        fired = "Tokens at which the gate opened in at least one layer."
        self._fired = counter("fired_tokens_total", fired, "method")
        self._cancelled = counter("cancelled_total", "Requests whose client went away.")
        self._latency = histogram("request_seconds", "Chat completions from arrival to last byte.", _SECONDS)
        self._first = histogram("first_token_seconds", "From arrival to the first token.", _SECONDS)
        self._rows = histogram("batch_rows", "Rows of the batches that were run.", _ROWS)
        self._share = gauge("fired_share", "Share of tokens of gated methods that were tilted.")
        self._gated_tokens = self._fired_tokens = 0
        self._share.set_function(lambda: self._fired_tokens / max(self._gated_tokens, 1))
        self._waiting = gauge("queue_length", "Requests that wait for a model.", "model")
        self._alive = gauge("model_up", "Whether the model's inference thread runs.", "model")

    def watch(self, model: str, waiting: Callable[[], float], alive: Callable[[], float]) -> None:
        """Values of a model that are read when somebody asks."""
        self._waiting.labels(model).set_function(waiting)
        self._alive.labels(model).set_function(alive)

    def request(self, path: str, status: int) -> None:
        """A response was sent."""
        self._requests.labels(path, str(status)).inc()

    def completion(self, seconds: float) -> None:
        """A chat completion took this long, from its arrival to its last byte."""
        self._latency.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """The first token of a completion came this long after its arrival."""
        self._first.observe(seconds)

    def batch(self, rows: int) -> None:
        """A batch of this many rows was started."""
        self._rows.observe(rows)

    def prompt(self, tokens: int) -> None:
        """A prompt of this many tokens was read."""
        self._prompt_tokens.inc(tokens)

    def answered(self, method: str, tokens: int, fired: int | None) -> None:
        """An answer of this many tokens, of which `fired` were tilted (None: no gate)."""
        self._generated.labels(method).inc(tokens)
        if fired is not None:
            self._gated.labels(method).inc(tokens)
            self._fired.labels(method).inc(fired)
            self._gated_tokens += tokens
            self._fired_tokens += fired

    def cancelled(self) -> None:
        """A client went away before its answer was complete."""
        self._cancelled.inc()

    def text(self) -> str:
        """The exposition."""
        return generate_latest(self._registry).decode()
