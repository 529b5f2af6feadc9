"""Going both ways at a gate, and finding out at the end of the pass which way was right.

A gate reads the whole head from memory. But the end of a pass reads it anyway, for sixty rows at nearly the price
of one. So in the last layers each gate is left undecided: the rows go on twice, closed and open, and the last
reading of the head gives the logits of all paths and the entropies of all gates' states. Then the gates are
decided in their order, and each row keeps what its path made. Nothing is guessed: every gate sees the state it
would have seen, and all its words.

Rows: main and branch rows as ever, then forks of the main rows. At the gate number `j` there are `2^j` paths. Path
`p` has gate `i` open where bit `i` of `p` is set; its rows stand at `held + (p - 1) * main`, those of path 0 in
front. The first forked layer's keys and values are the same on both paths. Later ones differ in the newest token,
and wait beside the cache until the path is known. All paths of a row read its other keys and values once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.recorder import Recorder
    from seewhen.equations.when import Gate, RunningEntropy

_OPEN = threading.local()  # the fork that this thread's pass is in


@dataclass(frozen=True)
class Forked:
    """Which gates of a sequence's steps are left to the end, and which rows are open after each."""

    layers: tuple[int, ...]
    open: tuple[Tensor, ...]  # (rows after it,), bool


@dataclass
class Fork:
    """One pass over a sequence whose last gates go both ways."""

    forked: Forked
    backbone: Backbone
    recorder: Recorder
    held: int  # main and branch rows
    states: list[Tensor] = field(default_factory=list)  # (paths * main, d) before each gate so far
    rules: list[tuple[Gate, RunningEntropy | None, Tensor]] = field(default_factory=list)
    angles: tuple[Tensor, ...] = ()  # rotary angles of the rows of all paths, where rows differ in them

    def main(self, rows: Tensor) -> Tensor:
        """The rows of all paths among all rows."""
        main = self.recorder.rows
        return rows if self.held == main else torch.cat([rows[:main], rows[self.held :]])

    def undecided(
        self, layer: int, hidden: Tensor, gate: Gate, history: RunningEntropy | None, valid: Tensor
    ) -> Tensor:
        """Which rows of `layer` are open, now that its gate goes both ways; `hidden` (rows, d) is its input."""
        self.states.append(self.backbone.norm(self.main(hidden)))
        self.rules.append((gate, history, valid))
        return self.forked.open[self.forked.layers.index(layer)]

    def grown(self, layer: int, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """The arguments of a forked layer, for twice as many paths."""
        from seewhen.decoding.kernels.cache_kernel import waiting

        if layer == self.forked.layers[0]:
            _OPEN.fork = self
            waiting().clear()
        hidden = args[0] if args else kwargs["hidden_states"]
        rows = torch.cat([hidden, self.main(hidden)])
        angles = kwargs.get("position_embeddings")
        if angles is not None and angles[0].shape[0] > 1:
            if not self.angles:
                main, forks = self.recorder.rows, 2 ** len(self.forked.layers) - 1
                self.angles = tuple(torch.cat([a, *[a[:main]] * forks]) for a in angles)
            kwargs = {**kwargs, "position_embeddings": tuple(a[: len(rows)] for a in self.angles)}
        return ((rows, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": rows})

    def own(self, keys: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """The newest token's keys and values of all paths and its column, where paths differ in them."""
        from seewhen.decoding.kernels.cache_kernel import waiting

        if len(self.states) < 2:
            return None
        layer, key, value = waiting()[keys.data_ptr()]
        return key, value, layer.cumulative_length

    def decided(self, x: Tensor, head: Tensor) -> Tensor:
        """Logits (rows, 1, words) of the paths taken, of the last states `x` (rows of all paths, 1, d)."""
        from seewhen.decoding.kernels import cache_kernel, fork_kernel, gate_kernel

        logits, parts = fork_kernel.logits_and_parts(x[:, -1], self.states, head)
        path = torch.empty(self.recorder.rows, dtype=torch.int32, device=x.device)
        first = 0
        for fork, (layer, states, rule) in enumerate(
            zip(self.forked.layers, self.states, self.rules, strict=True)
        ):
            gate, history, valid = rule
            gate_kernel.decided(parts, valid, gate, history, self.recorder, layer, path, fork, first)
            first += len(states)
        for layer, key, value in list(cache_kernel.waiting().values())[1:]:
            cache_kernel.write_row(layer, key, value, path)
        cache_kernel.waiting().clear()
        return fork_kernel.take(logits, path, self.held)[:, None]


def open_fork() -> Fork | None:
    """The fork that this thread's pass is in; it ends with this."""
    fork = getattr(_OPEN, "fork", None)
    _OPEN.fork = None
    return fork


def forget() -> None:
    """A pass begins: an earlier one that ended in an error leaves nothing."""
    _OPEN.fork = None
