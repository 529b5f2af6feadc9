"""Decoding at the speed of the hardware: captured steps, fused kernels, measurements."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.backbone import Backbone
    from seewhen.methods.base import Method

# Read once: the search for a package is slow, and a compiler cannot trace it.
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

Fast = Literal["auto", "off", "graph"]


@dataclass(frozen=True)
class Way:
    """How a session decodes fast: with our kernels or (on a CPU) the stock ones."""

    kernels: bool


def check(fast: str) -> None:
    """Refuse what is no way of decoding."""
    if fast not in ("auto", "off", "graph"):
        raise UnsupportedMode(f"fast={fast!r} is unknown.", "Use 'auto', 'off' or 'graph'.")


def resolve(fast: Fast, backbone: Backbone, method: Method) -> Way | None:
    """What `fast` means for this model and method; None is transformers' own loop."""
    check(fast)
    if fast == "off":
        return None
    places = {parameter.device for parameter in backbone.decoder.parameters()}
    on_one_gpu = len(places) == 1 and next(iter(places)).type == "cuda"
    why_not = None
    if not method.compiles or method.parts(backbone).loop is not None:
        why_not = f"{method.name} cannot be captured: it needs gradients or a loop of its own."
    elif len(places) != 1:
        why_not = "the decoder is spread over several devices."
    if why_not is not None:
        if fast == "auto":
            return None
        raise UnsupportedMode(f"fast={fast!r} does not apply: {why_not}", "Use fast='auto' or fast='off'.")
    kernels = kernels_run_on(next(iter(places)))
    if fast == "auto" and not (kernels and on_one_gpu):
        return None
    return Way(kernels=kernels)


def kernels_run_on(device: torch.device) -> bool:
    """Whether our kernels run there: on a GPU, or anywhere in Triton's interpreter (for tests)."""
    return _HAS_TRITON and (device.type == "cuda" or _INTERPRETED)


def may_replace_loop(arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments of `generate` leave the decoding loop and the cache to us."""
    taken = ("custom_generate", "past_key_values", "cache_implementation", "synced_gpus", "compile_config")
    return all(arguments.get(name) is None for name in taken)


@contextmanager
def quickened(backbone: Backbone, way: Way | None) -> Iterator[None]:
    """Our kernels under the decoder's modules for the time of the context, where they are used."""
    if way is None or not way.kernels:
        yield
        return
    from seewhen.speed.modules import swapped

    with swapped(backbone):
        yield
