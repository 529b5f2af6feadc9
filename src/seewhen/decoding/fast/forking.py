"""Which gates of a captured step are left to its end: see `seewhen.decoding.fork`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from transformers.cache_utils import StaticLayer

from seewhen.decoding.fork import Forked
from seewhen.decoding.kernels import fork_kernel, linear_kernel
from seewhen.decoding.kernels.attention_kernel import takes_heads

if TYPE_CHECKING:
    from seewhen.decoding.sequence import CachedSequence

MOST_GATES = 4  # four are sixteen paths


def forked(sequence: CachedSequence, cache: Any) -> Forked | None:
    """How steps of `sequence` on `cache` fork; None where they cannot."""
    if len(sequence.interventions) != 1 or "forward" not in sequence.backbone.head.__dict__:
        return None  # others would have to know of the rows; the head must be in our kernels' hands
    gated, heads = sequence.interventions[0].undecided(sequence), sequence.backbone.text_config.num_attention_heads
    held, main = sequence.all_rows, sequence.rows
    last = len(sequence.backbone.layers)
    gates = 0
    while gates < MOST_GATES and last - gates - 1 in gated:
        paths = 2 ** (gates + 1)
        forks = (paths - 1) * main
        plain = all(_plain(layer, heads, paths) for layer in cache.layers[last - gates - 1 : last])
        if not _few(held + forks, forks) or not plain:
            break
        gates += 1
    if not gates:
        return None
    rows = torch.arange(held + (2**gates - 1) * main, device=sequence.image.valid.device)
    ends = [held + (2**gate - 1) * main for gate in range(gates + 1)]  # of the rows before and after each gate
    return Forked(
        tuple(range(last - gates, last)),
        tuple(rows[:after] >= before for before, after in itertools.pairwise(ends)),
    )


def _few(rows: int, states: int) -> bool:
    """Whether our kernels take so many rows of paths and, with them, so many gates' states."""
    return rows <= linear_kernel.MOST_ROWS and rows + states <= fork_kernel.MOST_ROWS


def _plain(layer: Any, heads: int, paths: int) -> bool:
    """Whether our kernels fill this layer of a cache and attend to it on so many paths."""
    return type(layer) is StaticLayer and layer.is_initialized and takes_heads(heads, layer.keys, paths)
