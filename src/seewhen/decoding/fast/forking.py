"""Which gates of a captured step are left to its end: see `seewhen.decoding.fork`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.cache_utils import StaticLayer

from seewhen.decoding.fork import Forked
from seewhen.decoding.kernels import fork_kernel, linear_kernel
from seewhen.decoding.kernels.attention_kernel import takes_heads

if TYPE_CHECKING:
    from seewhen.decoding.sequence import Sequence

MOST_GATES = 3  # three are eight paths
# What forks may read of keys and values for one gate more, as a share of the head, which that gate does not read:
# both from measurements, see benchmarks/speed.md.
SHARE = 1 / 6


def forked(sequence: Sequence, cache: Any) -> Forked | None:
    """How steps of `sequence` on `cache` fork; None where they cannot."""
    if len(sequence.interventions) != 1 or "forward" not in sequence.backbone.head.__dict__:
        return None  # others would have to know of the rows; the head must be in our kernels' hands
    gated, heads = sequence.interventions[0].undecided(sequence), sequence.backbone.text_config.num_attention_heads
    held, main = sequence.all_rows, sequence.rows
    layers: list[int] = []
    open_: list[Tensor] = []
    for layer in reversed(range(len(sequence.backbone.layers))):
        paths = 2 ** len(layers)
        if len(layers) == MOST_GATES or layer not in gated or not _plain(cache.layers[layer], heads):
            break
        forks = (2 * paths - 1) * main
        if not _few(held + forks, forks) or not _pays(cache.layers[layer], forks, sequence.backbone.head):
            break
        layers.insert(0, layer)
        rows = torch.arange(held + forks, device=sequence.image.valid.device)
        open_.append(rows >= held + (paths - 1) * main)
    return Forked(tuple(layers), tuple(open_)) if layers else None


def _pays(layer: Any, forks: int, head: Any) -> bool:
    """Whether so many forks read little enough in the deepest layer."""
    return bool(2 * forks * layer.keys[0].nbytes <= SHARE * head.weight.nbytes)


def _few(rows: int, states: int) -> bool:
    """Whether our kernels take so many rows of paths and, with them, so many gates' states."""
    return rows <= linear_kernel.MOST_ROWS and rows + states <= fork_kernel.MOST_ROWS


def _plain(layer: Any, heads: int) -> bool:
    """Whether our kernels fill this layer of a cache and attend to it."""
    return type(layer) is StaticLayer and layer.is_initialized and takes_heads(heads, layer.keys)
