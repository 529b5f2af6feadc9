"""What happened at each step, in tensors of fixed shape on the device, which a compiled step can write to."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seewhen.equations.when import entropy

_RUNNERS = 5  # runner-up tokens kept in a full trace


class Recorder:
    """Fixed-shape device buffers of what happened at each step.

    `level` is "summary" (entropy, threshold and gate of each step and gated layer: cheap, always on),
    "full" (also all layers' entropy, relevance, attention, runner-up tokens) or "replay" (also the raw
    logits and the scores).
    """

    def __init__(self, level: str, rows: int, layers: int, capacity: int, device: torch.device) -> None:
        self.level = level
        self.full = level != "summary"  # whether more than the summary is kept
        self.rows, self.layers, self.capacity, self.device = rows, layers, capacity, device
        self.step = _static(torch.zeros(1, dtype=torch.long, device=device))
        self.buffers: dict[str, Tensor] = {}
        self.numbers: Tensor | None = None  # (rows,), where rows began at different steps

    @property
    def number(self) -> Tensor:
        """The number of the token that this step makes, from 0: (1,), or (rows, 1) where rows began apart."""
        return self.step if self.numbers is None else self.numbers[:, None]

    def declare(self, name: str, shape: tuple[int, ...], fill: float | bool = math.nan) -> None:
        """Make a buffer of `capacity` x `shape`. Called at prefill only."""
        if name not in self.buffers:
            dtype = torch.bool if isinstance(fill, bool) else torch.float32
            size = (self.capacity, *shape)
            self.buffers[name] = _static(torch.full(size, fill, dtype=dtype, device=self.device))

    def write(self, name: str, value: Tensor, layer: int | None = None, step: Tensor | None = None) -> None:
        """Store `value` of this step or an earlier one (1,); of one layer, for buffers whose third dimension is
        layers."""
        buffer = self.buffers.get(name)
        if buffer is None:
            return
        target = buffer if layer is None else buffer[:, :, layer]
        place = self.step if step is None else step
        target.index_copy_(0, place.to(target.device), value.unsqueeze(0).to(target.device, target.dtype))

    def write_gate(self, layer: int, gate: Tensor, entropy: Tensor | None, threshold: Tensor | None) -> None:
        """What a gate decided before `layer`. The entropy belongs to the layer before, whose output it read."""
        self.write("gate", gate, layer)
        if entropy is not None and threshold is not None:
            self.write("entropy", entropy, layer - 1)
            self.write("threshold", threshold, layer)

    def write_logits(self, main: Tensor, scores: Tensor, base: float, first: bool) -> None:
        """The likeliest tokens by `scores`, and the last layer's entropy; in a replay all of both."""
        runners = min(_RUNNERS, main.shape[-1])
        if first:
            self.declare("entropy", (self.rows, self.layers))
            self.declare("top_ids", (self.rows, runners))
            self.declare("top_log_probs", (self.rows, runners))
            if self.level == "replay":
                self.declare("logits", (self.rows, main.shape[-1]))
                self.declare("scores", (self.rows, main.shape[-1]))
        values, ids = torch.log_softmax(scores, dim=-1).topk(runners, dim=-1)
        self.write("top_ids", ids)
        self.write("top_log_probs", values)
        self.write("logits", main)
        self.write("scores", scores)
        self.write("entropy", entropy(main, base), self.layers - 1)

    def copied(self) -> Recorder:
        """The same records at addresses of their own."""
        copy = Recorder(self.level, self.rows, self.layers, self.capacity, self.device)
        copy.step, copy.buffers = self.step.clone(), {name: b.clone() for name, b in self.buffers.items()}
        return copy

    def advance(self, room: int | None) -> None:
        """Go to the next step; `room` is how many steps must fit (None where the cache is static)."""
        self.step.add_(1)
        if room is not None and room > self.capacity:
            grown = 2 * self.capacity
            for name, buffer in self.buffers.items():
                fill: float | bool = False if buffer.dtype == torch.bool else math.nan
                larger = torch.full((grown, *buffer.shape[1:]), fill, dtype=buffer.dtype, device=buffer.device)
                larger[: self.capacity] = buffer
                self.buffers[name] = _static(larger)
            self.capacity = grown


def _static(tensor: Tensor) -> Tensor:
    """Tell CUDA graphs that this tensor keeps its address, so that in-place updates can be captured."""
    if not torch.compiler.is_compiling():
        torch._dynamo.mark_static_address(tensor)
    return tensor
