"""How many stages of its loads a kernel may have under way: shared memory is finite, and smaller on some cards."""

from __future__ import annotations

from functools import cache

import torch
import triton

_LARGEST = (
    232_448  # bytes for one program on the cards the tiles were measured on; for the interpreter and compilers too
)
_SPARE = 16 * 1024  # for what a kernel keeps beside its loads


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that one program may have on this device."""
    if device.type != "cuda":
        return _LARGEST
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index)["max_shared_mem"])


def stages_that_fit(stages: int, tile: int, device: torch.device) -> int:
    """At most `stages`, fewer where so many tiles of `tile` bytes have no room."""
    return max(1, min(stages, (shared_memory(device) - _SPARE) // tile))
