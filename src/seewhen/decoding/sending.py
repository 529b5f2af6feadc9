"""Small numbers on their way to a device, without waiting for what it has to do first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sent(values: Any, device: torch.device) -> Tensor:
    """`values` as a tensor on `device`; a copy from memory that is not pinned would wait for what is queued."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
