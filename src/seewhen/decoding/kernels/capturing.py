"""CUDA graphs: captured once, replayed without the host."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from threading import RLock
from typing import Any

import torch

_DEVICE = RLock()


def turn(device: torch.device) -> AbstractContextManager[Any]:
    """One thread at a time talks to a GPU: while a step is captured nobody else may draw random numbers there.

    Held for one pass only, never while a streamer or a stopping rule of the caller runs.
    """
    return _DEVICE if device.type == "cuda" else nullcontext()


@contextmanager
def garbage_waits() -> Iterator[None]:
    """Python collects no garbage meanwhile: a graph that is freed in the middle of another's capture ends it."""
    with _DEVICE:  # one at a time, so that nobody collects for somebody who still captures
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


@cache
def _captures_of(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    """Where graphs are captured that run in this queue beside others: matrix products captured in one queue share
    their working memory. Not the queue itself, in which other threads' events may lie."""
    return torch.cuda.Stream(stream.device)


def captured_graph(
    step: Callable[[], None], named: str = "The decoding step", pool: Any = None
) -> tuple[Callable[[], None], bool]:
    """The step as a CUDA graph, and True. Capturing runs nothing. What cannot be captured stays as it is; a
    warning tells of what is `named`. Graphs of one `pool` share the memory of what they need while they run."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    here = torch.cuda.current_stream()
    queue = None if here == torch.cuda.default_stream() else _captures_of(here)
    try:
        with garbage_waits(), torch.cuda.graph(graph, pool, queue, capture_error_mode="thread_local"):
            step()
    except RuntimeError as error:  # a module waits for the device: experts chosen on the host, some quantisations
        if named:
            reason = str(error).splitlines()[0]
            warnings.warn(f"{named} cannot be captured, so it runs uncaptured: {reason}", stacklevel=2)
        torch.cuda.synchronize()
        return step, False

    def replay() -> None:
        graph.replay()

    replay.step = step  # type: ignore[attr-defined]  # what the step holds must live as long as its graph
    return replay, True
