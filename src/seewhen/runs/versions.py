"""What decides the numbers of a run beside its configuration: package versions, the processor."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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


def processor_name() -> str:
    """The CPU's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
