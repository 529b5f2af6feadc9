"""Decoding at the speed of the hardware: captured steps, fused kernels, measurements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.method import Method

Fast = Literal["auto", "off", "graph"]


@dataclass(frozen=True)
class FastDecoding:
    """A session decodes in our own loop: with our kernels or (on a CPU) the stock ones."""

    kernels: bool


def check(fast: str) -> None:
    """Refuse what is no way of decoding."""
    if fast not in ("auto", "off", "graph"):
        raise UnsupportedMode(f"fast={fast!r} is unknown.", "Use 'auto', 'off' or 'graph'.")


def resolve(fast: Fast, backbone: Backbone, method: Method) -> FastDecoding | None:
    """What `fast` means for this model and method; None is transformers' own loop."""
    check(fast)
    if fast == "off":
        return None
    places = {parameter.device for parameter in backbone.decoder.parameters()}
    on_one_gpu = len(places) == 1 and next(iter(places)).type == "cuda"
    kernels = len(places) == 1 and kernels_run_on(next(iter(places)))
    why_not = None
    if not method.compiles or method.parts(backbone).loop is not None:
        why_not = f"{method.name} cannot be captured: it needs gradients or a loop of its own."
    elif len(places) != 1:
        why_not = "the decoder is spread over several devices."
    elif kernels and not getattr(backbone.decoder, "_supports_sdpa", False):
        # Scores with a cap, sinks: our kernels compute what SDPA does, and prompts are left to it.
        why_not = f"the attention of {type(backbone.decoder).__name__} is more than SDPA and our kernels compute."
    if why_not is not None:
        if fast == "auto":
            return None
        raise UnsupportedMode(f"fast={fast!r} does not apply: {why_not}", "Use fast='auto' or fast='off'.")
    if fast == "auto" and not (kernels and on_one_gpu):
        return None
    return FastDecoding(kernels=kernels)


def may_replace_loop(arguments: Mapping[str, Any], cache: str | None) -> bool:
    """Whether the arguments of `generate` leave the decoding loop and the cache to us. `cache` is the kind that
    the model's configuration may ask for, too: one that saves memory is kept, any other becomes ours."""
    if cache in ("quantized", "offloaded", "offloaded_static"):
        return False
    taken = ("custom_generate", "past_key_values", "cache_implementation", "synced_gpus", "compile_config")
    return all(arguments.get(name) is None for name in taken)


@contextmanager
def quickened(backbone: Backbone, fast: FastDecoding | None) -> Iterator[None]:
    """Our kernels under the decoder's modules for the time of the context, where they are used."""
    if fast is None or not fast.kernels:
        yield
        return
    from seewhen.decoding.fast.modules import swapped

    with swapped(backbone):
        yield
