"""Small numbers on their way to a device and back, without waiting for what it has to do first."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sent(values: Any, device: torch.device) -> Tensor:
    """`values` as a tensor on `device`; a copy from memory that is not pinned would wait for what is queued."""
    tensor = torch.tensor(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def hosted(tensor: Tensor) -> Tensor:
    """A copy on the host, which is complete when the device gets there."""
    if not tensor.is_cuda:
        return tensor.clone()
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def posted(tensor: Tensor) -> tuple[Tensor, Any]:
    """The same with the event of its arrival; None without a GPU, where it is there at once."""
    copy, arrived = hosted(tensor), None
    if tensor.is_cuda:
        arrived = torch.cuda.Event()
        arrived.record()
    return copy, arrived
