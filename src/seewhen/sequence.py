"""What one generation carries from its prefill to its last token.

A `Sequence` belongs to one key-value cache and is found through it, so that nested calls, threads and
several caches on one model never meet. A `Step` is one forward pass. A `Recorder` holds what happened
in tensors of fixed shape on the device, which a compiled step can write to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from seewhen.attention import AttentionCall
from seewhen.backbone import Backbone
from seewhen.interventions import Intervention

ATTRIBUTE = "_seewhen_sequence"


@dataclass(frozen=True)
class ImageColumns:
    """Where the image tokens of each main row are: padded column indices and which of them are real."""

    columns: Tensor  # (rows, tokens), long
    valid: Tensor  # (rows, tokens), bool

    @classmethod
    def of(cls, mask: Tensor) -> ImageColumns:
        """From a boolean mask (rows, positions). Reads the largest count from the device: prefill only."""
        counts = mask.sum(dim=1)
        tokens = max(int(counts.max()), 1)  # one, not real, where no row has an image: never an empty tensor
        # A stable sort brings the image positions of each row to the front, in order.
        order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)[:, :tokens]
        valid = torch.arange(tokens, device=mask.device)[None] < counts[:, None]
        return cls(order.masked_fill(~valid, 0), valid)

    def padded(self, rows: int) -> tuple[Tensor, Tensor]:
        """Columns and validity for all rows; branch rows have no valid column."""
        from seewhen.interventions import pad_rows

        return pad_rows(self.columns, rows), pad_rows(self.valid, rows)


@dataclass
class Prefill:
    """What the decoder was given for the prompt, main rows only."""

    embeds: Tensor  # (rows, positions, d)
    image_mask: Tensor  # (rows, positions), bool
    padding: Tensor  # (rows, positions), bool: left padding of the main rows
    position_ids: Tensor  # (rows, positions) or (axes, rows, positions)
    input_ids: Tensor | None
    inputs: dict[str, Any]  # what the user gave to generate(), as far as known (pixel_values, ...)
    extras: dict[str, Any]  # other decoder arguments with a row dimension (deep visual features)

    @property
    def tail(self) -> Tensor:
        """The prompt tokens after the last image token of each row, as a mask."""
        after = self.image_mask.flip(1).cumsum(1).flip(1) == 0
        return after & ~self.padding


class Recorder:
    """Fixed-shape device buffers of what happened at each step.

    `level` is "summary" (entropy, threshold and gate of each step and gated layer: cheap, always on),
    "full" (also all layers' entropy, relevance, attention, runner-up tokens) or "replay" (also the raw
    logits and the scores).
    """

    def __init__(self, level: str, rows: int, layers: int, capacity: int, device: torch.device) -> None:
        self.level = level
        self.rows, self.layers, self.capacity, self.device = rows, layers, capacity, device
        self.step = _static(torch.zeros(1, dtype=torch.long, device=device))
        self.buffers: dict[str, Tensor] = {}

    @property
    def full(self) -> bool:
        """Whether more than the summary is kept."""
        return self.level != "summary"

    def declare(self, name: str, shape: tuple[int, ...], fill: float | bool = math.nan) -> None:
        """Make a buffer of `capacity` x `shape`. Called at prefill only."""
        if name not in self.buffers:
            dtype = torch.bool if isinstance(fill, bool) else torch.float32
            size = (self.capacity, *shape)
            self.buffers[name] = _static(torch.full(size, fill, dtype=dtype, device=self.device))

    def write(self, name: str, value: Tensor, layer: int | None = None) -> None:
        """Store `value` of this step (of one layer, for buffers whose third dimension is layers)."""
        buffer = self.buffers.get(name)
        if buffer is None:
            return
        target = buffer if layer is None else buffer[:, :, layer]
        target.index_copy_(0, self.step.to(target.device), value.unsqueeze(0).to(target.device, target.dtype))

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


@dataclass
class Sequence:
    """The state of one batch of sequences: `rows` main rows, each with `branches` extra rows."""

    backbone: Backbone
    interventions: tuple[Intervention, ...]
    rows: int
    branches: int
    prompt_length: int
    image: ImageColumns
    recorder: Recorder
    tables: Tables
    growing: bool = True  # the cache takes what comes; a static one has its columns from the start
    memories: list[Any] = field(default_factory=list)
    hidden: Tensor | None = None  # (all rows, prompt), bool: columns a row must not see
    shift: Tensor | None = None  # ([axes,] branch rows): how far branch positions lie behind their main row
    reached: bool = False  # an attention call has received the step: the model hands keywords down
    fast: bool = False  # our kernels may be used: results equal to rounding, not bit for bit
    widened: int = 0  # columns of padding before the prompt, for branches with a longer one

    @property
    def all_rows(self) -> int:
        """Main and branch rows together."""
        return self.rows * (1 + self.branches)

    def reorder(self, index: Tensor) -> None:
        """Beam search picked the main rows `index`; take all per-row state along."""
        # Records stay where they were written; beam indices tell later which rows a winner went through.
        for intervention, memory in zip(self.interventions, self.memories, strict=True):
            intervention.reorder(memory, index)
        if self.hidden is not None:
            self.hidden.copy_(self.hidden.index_select(0, self.all_index(index).to(self.hidden.device)))
        if self.shift is not None:
            branch = self.all_index(index)[self.rows :] - self.rows
            self.shift.copy_(self.shift.index_select(-1, branch.to(self.shift.device)))

    def all_index(self, index: Tensor) -> Tensor:
        """The index of all rows that goes with an index of main rows."""
        offsets = torch.arange(1 + self.branches, device=index.device) * self.rows
        return (offsets[:, None] + index[None]).reshape(-1)


@dataclass(frozen=True)
class Tables:
    """Which interventions act at which layer, resolved once when attaching."""

    sees: dict[int, tuple[int, ...]]
    edits: dict[int, tuple[int, ...]]
    masks: dict[int, tuple[int, ...]]

    @classmethod
    def of(cls, interventions: tuple[Intervention, ...], backbone: Backbone) -> Tables:
        def table(wanted: list[frozenset[int]]) -> dict[int, tuple[int, ...]]:
            layers = sorted(set().union(*wanted))
            return {la: tuple(i for i, layers_i in enumerate(wanted) if la in layers_i) for la in layers}

        return cls(
            table([i.sees(backbone) for i in interventions]),
            table([i.edits(backbone) for i in interventions]),
            table([i.masks(backbone) for i in interventions]),
        )


class Step:
    """One forward pass over a sequence. `scratch[i]` belongs to intervention `i` and dies with the pass."""

    def __init__(self, sequence: Sequence, prefill: Prefill | None) -> None:
        self.sequence = sequence
        self.prefill = prefill
        self.scratch: list[dict[str, Any]] = [{} for _ in sequence.interventions]

    @property
    def recorder(self) -> Recorder:
        """Where this step is recorded."""
        return self.sequence.recorder

    def before_forward(self, embeds: Tensor) -> None:
        """Let every intervention see the decoder's input embeddings."""
        for intervention, memory in zip(self.sequence.interventions, self.sequence.memories, strict=True):
            intervention.before_forward(self, memory, embeds)

    def before_layer(self, layer: int, hidden: Tensor) -> None:
        """Let the interventions that asked for it see the input of `layer`."""
        for i in self.sequence.tables.sees.get(layer, ()):
            self.sequence.interventions[i].before_layer(self, self.sequence.memories[i], layer, hidden)

    def edits(self, layer: int) -> bool:
        """Whether any intervention edits the attention of `layer`."""
        return layer in self.sequence.tables.edits

    def fuses(self, layer: int) -> bool:
        """Whether the one edit of `layer` can happen inside the attention kernel."""
        editing = self.sequence.tables.edits[layer]
        return len(editing) == 1 and self.sequence.interventions[editing[0]].fuses(self)

    def edit_attention(self, call: AttentionCall) -> Tensor:
        """The attention output after all edits of this layer."""
        if self.prefill is not None:
            self.sequence.reached = True
        for i in self.sequence.tables.edits[call.layer]:
            call.output = self.sequence.interventions[i].attend(self, self.sequence.memories[i], call)
        return call.output

    def edit_mask(self, layer: int, mask: Tensor | None, queries: int, columns: int) -> Tensor | None:
        """The attention mask after all edits of this layer."""
        if self.prefill is not None:
            self.sequence.reached = True
        for i in self.sequence.tables.masks.get(layer, ()):
            intervention, memory = self.sequence.interventions[i], self.sequence.memories[i]
            mask = intervention.edit_mask(self, memory, layer, mask, (queries, columns))
        return mask

    def scratch_of(self, intervention: Intervention) -> dict[str, Any]:
        """The scratch of `intervention` in this pass."""
        for own, scratch in zip(self.sequence.interventions, self.scratch, strict=True):
            if own is intervention:
                return scratch
        raise KeyError(intervention)
