"""Writing one token's keys and values into a static cache: one kernel for a layer, one for all lengths."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from transformers.cache_utils import StaticLayer

from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.decoding.kernels.fork_kernel import paths_of, row_of_path

_THREAD = threading.local()


@triton.jit
def _write(
    k_ptr, v_ptr, keys_ptr, values_ptr, length_ptr, path_ptr, heads, columns, held, main, paths, length_row,
    k_row, k_head, v_row, v_head, forked: tl.constexpr, d: tl.constexpr, e: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    place = tl.program_id(0).to(tl.int64) * columns + tl.load(length_ptr + row * length_row)
    at = tl.arange(0, block)
    if forked:
        row = row_of_path(path_ptr, row, held, main, paths)
    k = tl.load(k_ptr + row * k_row + head * k_head + at, mask=at < d, other=0.0)
    tl.store(keys_ptr + place * d + at, k, mask=at < d)
    v = tl.load(v_ptr + row * v_row + head * v_head + at, mask=at < e, other=0.0)
    tl.store(values_ptr + place * e + at, v, mask=at < e)


def write_row(layer: Any, key: Tensor, value: Tensor, path: Tensor | None = None) -> None:
    """Put key and value (rows, heads, 1, d) behind what `layer` holds; its length stays as it is.

    There may be more rows than it holds: those of forks, of which each main row's `path` chooses one.
    """
    write_at(layer.keys, layer.values, layer.cumulative_length, key, value, path)


def write_at(
    keys: Tensor, values: Tensor, lengths: Tensor, key: Tensor, value: Tensor, path: Tensor | None = None
) -> None:
    """The same into keys and values (rows, heads, columns, d) at column `lengths`, one or (rows,)."""
    rows, heads, columns, d = keys.shape
    e = values.shape[-1]
    main = rows if path is None else len(path)
    _write[(rows * heads,)](
        key, value, keys, values, lengths, lengths if path is None else path, heads, columns, rows, main,
        paths_of(key.shape[0], rows, main), int(lengths.numel() > 1),
        key.stride(0), key.stride(1), value.stride(0), value.stride(1), forked=path is not None,
        d=d, e=e, block=triton.next_power_of_2(max(d, e)), num_warps=1,
    )  # fmt: skip


def waiting() -> dict[int, tuple[Any, Tensor, Tensor]]:
    """By address of its keys, each layer of this thread's pass with newest keys and values of more rows than it
    holds: forks, of which one will be chosen."""
    if not hasattr(_THREAD, "waiting"):
        _THREAD.waiting = {}
    found: dict[int, tuple[Any, Tensor, Tensor]] = _THREAD.waiting
    return found


class RowWriter:
    """Lets a static cache take single tokens through `write_row`; `advance` then counts them, all layers at once.

    Layers that are not plain static ones (sliding, recurrent) keep their own way and count for themselves.
    """

    def __init__(self, cache: Any) -> None:
        self.layers = [layer for layer in cache.layers if type(layer) is StaticLayer]
        for layer in self.layers:
            layer.update = self._update(layer)

    @staticmethod
    def _update(layer: Any) -> Any:
        # Not the layer itself: it would hold itself, and the cache's memory would wait for the garbage collector.
        own = weakref.ref(layer)

        def update(key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            layer: Any = own()
            if not _takes(layer, key, value):
                result: tuple[Tensor, Tensor] = StaticLayer.update(layer, key, value, *args, **kwargs)
                return result
            write_row(layer, key, value)
            if key.shape[0] > layer.keys.shape[0]:
                waiting()[layer.keys.data_ptr()] = (layer, key, value)
            return layer.keys, layer.values

        return update

    def advance(self) -> None:
        """One more token in every layer that `write_row` serves."""
        served = [layer for layer in self.layers if _serves(layer)]
        if served:
            torch._foreach_add_([layer.cumulative_length for layer in served], 1)


def _serves(layer: Any) -> bool:
    return bool(layer.is_initialized) and kernels_run_on(layer.keys.device)


def _takes(layer: Any, key: Tensor, value: Tensor) -> bool:
    return key.shape[2] == 1 and _serves(layer) and key.stride(-1) == 1 and value.stride(-1) == 1
