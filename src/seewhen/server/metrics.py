"""Counters and histograms in Prometheus' text format."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64)
Labels = tuple[tuple[str, str], ...]


class Histogram:
    """Cumulative counts, sum and number of observations."""

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str) -> Iterable[str]:
        """As Prometheus reads it."""
        running = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            running += count
            yield f'{name}_bucket{{le="{bound}"}} {running}'
        yield f"{name}_sum {self.total:.6f}"
        yield f"{name}_count {running}"


class Metrics:
    """Everything the server counts. Called from the event loop and from inference threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, int]] = defaultdict(lambda: defaultdict(int))
        self._latency, self._first, self._rows = Histogram(_SECONDS), Histogram(_SECONDS), Histogram(_ROWS)
        self._gauges: list[tuple[str, Labels, Callable[[], float]]] = []

    def gauge(self, name: str, labels: Labels, read: Callable[[], float]) -> None:
        """A value that is read when somebody asks."""
        self._gauges.append((name, labels, read))

    def request(self, path: str, status: int) -> None:
        """A response was sent."""
        self._count("requests_total", (("path", path), ("status", str(status))))

    def completion(self, seconds: float) -> None:
        """A chat completion took this long, from its arrival to its last byte."""
        with self._lock:
            self._latency.observe(seconds)

    def first_token(self, seconds: float) -> None:
        """The first token of a completion came this long after its arrival."""
        with self._lock:
            self._first.observe(seconds)

    def batch(self, rows: int) -> None:
        """A batch of this many rows was started."""
        with self._lock:
            self._rows.observe(rows)

    def prompt(self, tokens: int) -> None:
        """A prompt of this many tokens was read."""
        self._count("prompt_tokens_total", (), tokens)

    def answered(self, method: str, tokens: int, fired: int | None) -> None:
        """An answer of this many tokens, of which `fired` were tilted (None: no gate)."""
        labels = (("method", method),)
        self._count("generated_tokens_total", labels, tokens)
        if fired is not None:
            self._count("gated_tokens_total", labels, tokens)
            self._count("fired_tokens_total", labels, fired)

    def cancelled(self) -> None:
        """A client went away before its answer was complete."""
        self._count("cancelled_total", ())

    def _count(self, name: str, labels: Labels, amount: int = 1) -> None:
        with self._lock:
            self._counters[name][labels] += amount

    def text(self) -> str:
        """The exposition."""
        lines: list[str] = []
        with self._lock:
            for name, help_text in _COUNTERS.items():
                lines += [f"# HELP seewhen_{name} {help_text}", f"# TYPE seewhen_{name} counter"]
                series = self._counters[name] or ({(): 0} if name in _UNLABELLED else {})
                lines += [f"seewhen_{name}{_labels(labels)} {value}" for labels, value in sorted(series.items())]
            for name, help_text, histogram in (
                ("request_seconds", "Chat completions from arrival to last byte.", self._latency),
                ("first_token_seconds", "From arrival to the first token.", self._first),
                ("batch_rows", "Rows of the batches that were run.", self._rows),
            ):
                lines += [f"# HELP seewhen_{name} {help_text}", f"# TYPE seewhen_{name} histogram"]
                lines += histogram.lines(f"seewhen_{name}")
            gated = sum(self._counters["gated_tokens_total"].values())
            fired = sum(self._counters["fired_tokens_total"].values())
        lines += ["# HELP seewhen_fired_share Share of tokens of gated methods that were tilted."]
        lines += ["# TYPE seewhen_fired_share gauge", f"seewhen_fired_share {fired / gated if gated else 0:.6f}"]
        for name in dict.fromkeys(name for name, _, _ in self._gauges):
            lines += [f"# HELP seewhen_{name} {_GAUGES[name]}", f"# TYPE seewhen_{name} gauge"]
            lines += [f"seewhen_{n}{_labels(labels)} {read():g}" for n, labels, read in self._gauges if n == name]
        return "\n".join(lines) + "\n"


_COUNTERS = {
    "requests_total": "Responses by path and status.",
    "prompt_tokens_total": "Tokens of prompts, images included.",
    "generated_tokens_total": "Tokens of answers, by method.",
    "gated_tokens_total": "Tokens of answers of methods with a gate.",
    "fired_tokens_total": "Tokens at which the gate opened in at least one layer.",
    "cancelled_total": "Requests whose client went away.",
}
_UNLABELLED = ("prompt_tokens_total", "cancelled_total")
_GAUGES = {
    "queue_length": "Requests that wait for a model.",
    "model_up": "Whether the model's inference thread runs.",
}


def _labels(labels: Labels) -> str:
    escaped = [
        '{}="{}"'.format(name, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n"))
        for name, value in labels
    ]
    return "{" + ",".join(escaped) + "}" if escaped else ""
