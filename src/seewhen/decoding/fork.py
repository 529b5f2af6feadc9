"""Going both ways at a gate, and finding out at the end of the pass which way was right.

A gate needs the whole head: as many bytes as two layers. But the end of a pass reads the head anyway, for any
number of rows at the price of one. So in the last layers each gate is left undecided: the rows go on twice, closed and
open, and the last reading of the head gives the logits of all paths and the entropies of all gates' states.
Then the gates are decided in their order, and each row keeps what its path made. Nothing is guessed: every
gate sees the state it would have seen, and all its words.

Rows: main and branch rows as ever, then forks of the main rows. At the gate number `j` there are `2^j` paths;
path `p` has gate `i` open where bit `i` of `p` is set, and its rows stand at `held + (p - 1) * main`, those of path 0
in front. The first forked layer's keys and values are the same on both paths. Later ones differ in the newest
token: they are kept beside the cache until the path is known.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from seewhen.decoding.sequence import Sequence
    from seewhen.equations.when import Gate, RunningEntropy

MOST_GATES = 3  # three are eight paths: measured, see benchmarks/speed.md
_OPEN = threading.local()  # the fork that this thread's pass is in


@dataclass(frozen=True)
class Forked:
    """Which gates of a sequence's steps are left to the end, and which rows are open after each."""

    layers: tuple[int, ...]
    open: tuple[Tensor, ...]  # (rows after it,), bool


@dataclass
class Fork:
    """One pass over a sequence whose last gates go both ways."""

    sequence: Sequence
    forked: Forked
    states: list[Tensor] = field(default_factory=list)  # (paths * main, d) before each gate so far
    rules: list[tuple[Gate, RunningEntropy | None, Tensor]] = field(default_factory=list)
    fresh: dict[int, tuple[Any, Tensor, Tensor]] = field(default_factory=dict)  # by address of the layer's keys

    def main(self, rows: Tensor) -> Tensor:
        """The rows of all paths among all rows."""
        held, main = self.sequence.all_rows, self.sequence.rows
        return rows if held == main else torch.cat([rows[:main], rows[held:]])

    def undecided(
        self, layer: int, hidden: Tensor, gate: Gate, history: RunningEntropy | None, valid: Tensor
    ) -> Tensor:
        """Which rows of `layer` are open, now that its gate goes both ways; `hidden` (rows, d) is its input."""
        self.states.append(self.sequence.backbone.norm(self.main(hidden)))
        self.rules.append((gate, history, valid))
        return self.forked.open[self.forked.layers.index(layer)]

    def grown(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments of a forked layer, for twice as many paths."""
        _OPEN.fork = self
        hidden = args[0] if args else kwargs["hidden_states"]
        rows = torch.cat([hidden, self.main(hidden)])
        angles = kwargs.get("position_embeddings")
        if angles is not None and angles[0].shape[0] > 1:
            held, main = self.sequence.all_rows, self.sequence.rows
            times = (len(rows) - held) // main
            kwargs = {**kwargs, "position_embeddings": tuple(torch.cat([a, *[a[:main]] * times]) for a in angles)}
        return ((rows, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": rows})

    def own(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """The newest token's keys and values of all paths and its column, where paths differ in them."""
        if len(self.states) < 2:
            return None
        layer, key, value = self.fresh[keys.data_ptr()]
        return key, value, layer.cumulative_length

    def decided(self, x: Tensor, head: Tensor) -> Tensor:
        """Logits (rows, 1, words) of the paths taken, of the last states `x` (rows of all paths, 1, d)."""
        from seewhen.decoding.kernels import cache_kernel, fork_kernel, gate_kernel

        sequence = self.sequence
        logits, parts = fork_kernel.logits_and_parts(x[:, -1], torch.cat(self.states), head)
        path = torch.empty(sequence.rows, dtype=torch.int32, device=x.device)
        first = 0
        for fork, (layer, states, rule) in enumerate(
            zip(self.forked.layers, self.states, self.rules, strict=True)
        ):
            gate, history, valid = rule
            gate_kernel.decided(parts, valid, gate, history, sequence.recorder, layer, path, fork, first)
            first += len(states)
        for layer, key, value in list(self.fresh.values())[1:]:
            cache_kernel.write_row(layer, key, value, path)
        return fork_kernel.take(logits, path, sequence.all_rows)[:, None]


def forked(sequence: Sequence, cache: Any) -> Forked | None:
    """How steps of `sequence` on `cache` fork; None where they cannot, or where rows would be too many."""
    from seewhen.decoding.kernels.fork_kernel import MOST_ROWS
    from seewhen.decoding.kernels.linear_kernel import MOST_ROWS as MOST_PATHS

    if len(sequence.interventions) != 1 or "forward" not in sequence.backbone.head.__dict__:
        return None
    gated, last = sequence.interventions[0].undecided(sequence), len(sequence.backbone.layers) - 1
    held, main, layers = sequence.all_rows, sequence.rows, []
    heads = sequence.backbone.text_config.num_attention_heads
    while (
        len(layers) < MOST_GATES
        and last - len(layers) in gated
        and _plain(cache.layers[last - len(layers)], heads)
    ):
        paths = 2 ** (len(layers) + 1)
        rows = held + (paths - 1) * main
        if rows > MOST_PATHS or rows + (paths - 1) * main > MOST_ROWS:
            break
        layers.insert(0, last - len(layers))
    if not layers:
        return None
    device = sequence.image.valid.device
    open_ = [
        torch.arange(held + (2 * p - 1) * main, device=device) >= held + (p - 1) * main for p in _paths(layers)
    ]
    return Forked(tuple(layers), tuple(open_))


def _paths(layers: list[int]) -> list[int]:
    return [2**number for number in range(len(layers))]


def _plain(layer: Any, heads: int) -> bool:
    """Whether our kernels fill this layer of a cache and attend to it."""
    from transformers.cache_utils import StaticLayer

    from seewhen.decoding.kernels.attention_kernel import takes_heads

    return type(layer) is StaticLayer and layer.is_initialized and takes_heads(heads, layer.keys)


def keep_fresh(layer: Any, key: Tensor, value: Tensor) -> None:
    """Keys and values of a token for more rows than the cache has, until the path is known."""
    fork: Fork = _OPEN.fork
    fork.fresh[layer.keys.data_ptr()] = (layer, key, value)


def open_fork() -> Fork | None:
    """The fork that this thread's pass is in; it ends with this."""
    fork = getattr(_OPEN, "fork", None)
    _OPEN.fork = None
    return fork


def forget() -> None:
    """A pass begins: an earlier one that ended in an error leaves nothing."""
    _OPEN.fork = None
