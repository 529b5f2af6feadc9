"""What decides the numbers of a run beside its configuration: package versions, the processor."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from seewhen.benchmarks import BENCHMARKS
from seewhen.methods import METHODS

_DECISIVE = ("seewhen", "torch", "transformers", "tokenizers", "pillow", "torchvision")


def package_versions() -> dict[str, str]:
    """Name to version, for those installed."""
    found = {}
    for name in _DECISIVE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def plugin_versions(benchmark: str, method: Any) -> dict[str, str]:
    """Of the other packages that a benchmark and a method, as JSON, are from."""
    found = BENCHMARKS.version(benchmark)
    for name in _named(method):
        found |= METHODS.version(name)
    return found


def _named(method: Any) -> Iterator[str]:
    """All methods in the description of one: a combination holds several."""
    if isinstance(method, dict):
        if isinstance(method.get("method"), str):
            yield method["method"]
        for inner in method.values():
            yield from _named(inner)
    elif isinstance(method, list | tuple):
        for inner in method:
            yield from _named(inner)


def processor_name() -> str:
    """The CPU's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
