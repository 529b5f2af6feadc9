"""Whether our kernels run at all."""

from __future__ import annotations

import importlib.util
import os

import torch

# Read once: the search for a package is slow, and a compiler cannot trace it.
_HAS_TRITON = importlib.util.find_spec("triton") is not None
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def kernels_run_on(device: torch.device) -> bool:
    """Whether our kernels run there: on a GPU, or anywhere in Triton's interpreter (for tests)."""
    return _HAS_TRITON and (device.type == "cuda" or _INTERPRETED)
