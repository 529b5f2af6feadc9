"""Versions of the packages that decide the numbers of a run."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

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
