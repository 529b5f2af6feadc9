"""Nested values of tensors (arguments, state of a sequence): their form, their tensors, and copies of them.

Two values of one form differ in nothing but what their tensors hold, so what was captured with one can run
with the other's numbers.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from seewhen.decoding.fast.adopt import PLAIN, SHARED, Mismatch
from seewhen.decoding.recorder import Recorder
from seewhen.decoding.sequence import CachedSequence

_AS_THEY_ARE = {*SHARED, "placement", "reached", "prefill"}  # of a sequence: no pass over the prompt reads them
_FEW = 64  # numbers that a form may hold


def form(value: Any, device: torch.device) -> Hashable:
    """All that a pass captured on `device` fixes; raises Mismatch where something of an unknown kind is inside."""
    if isinstance(value, Tensor):
        known = (tuple(value.shape), value.dtype, value.device)
        if value.device.type == device.type:
            return known
        if value.numel() > _FEW:
            raise Mismatch
        return (*known, tuple(value.flatten().tolist()))  # the host may read it while it captures
    if isinstance(value, PLAIN):
        return (type(value).__name__, value)
    if isinstance(value, dict):
        return tuple((name, form(part, device)) for name, part in value.items())
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(form(part, device) for part in value))
    if not _has_parts(value):
        raise Mismatch
    return (type(value).__name__, *((name, form(part, device)) for name, part in _parts(value).items()))


def tensors(value: Any) -> list[Tensor]:
    """Every tensor inside, in the order of the form."""
    if isinstance(value, Tensor):
        return [value]
    parts = value if isinstance(value, list | tuple | dict) else _parts(value)
    return [tensor for part in (parts.values() if isinstance(parts, dict) else parts) for tensor in tensors(part)]


def rebuilt(value: Any, of: Callable[[Tensor], Tensor] = lambda tensor: tensor) -> Any:
    """The same with containers of its own, and `of` each tensor."""
    if isinstance(value, Tensor):
        return of(value)
    if isinstance(value, dict):
        return {name: rebuilt(part, of) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(rebuilt(part, of) for part in value)
    if not _has_parts(value):
        return value
    new = copy.copy(value)
    for name, part in _parts(value).items():
        object.__setattr__(new, name, rebuilt(part, of))
    return new


def own(tensor: Tensor) -> Tensor:
    """A copy at an address of its own, every number in a place of its own (unlike in an expanded tensor)."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _has_parts(value: Any) -> bool:
    return isinstance(value, Recorder) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _parts(value: Any) -> dict[str, Any]:
    left_out = _AS_THEY_ARE if isinstance(value, CachedSequence) else ()
    return {n: part for n, part in vars(value).items() if n not in left_out} if _has_parts(value) else {}
