"""What one generation carries from its prefill to its last token.

A `CachedSequence` belongs to one key-value cache and is found through it, so that nested calls, threads and
several caches on one model never meet. A `Step` is one forward pass. An `Intervention` is what a method does in
it: a frozen description whose memory is made at prefill and lives on the sequence, and whose values of one pass
live on the step. It never keeps anything on itself or on the model.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.attention_call import AttentionCall
from seewhen.decoding.fork import Fork, Forked
from seewhen.decoding.prefill import ImageColumns, Prefill
from seewhen.decoding.recorder import Recorder

ATTRIBUTE = "_seewhen_sequence"


class Intervention:
    """Base class. Override what you need; every callback runs on main and branch rows alike.

    `memory` is whatever `begin` returned. Callbacks must stay on the device: no `.item()`, no branching
    on tensor values, so that they can be compiled.
    """

    # Whether no decoding step looks at the sequence's prompt length (a number, which a captured step would
    # keep): then a step captured for one prompt serves prompts of other lengths too.
    any_prompt_length: ClassVar[bool] = False
    # Whether all tensors of its memory begin with the main rows, and no row looks at another: then a prompt that
    # is read alone can join others in the middle of their answers.
    rows_apart: ClassVar[bool] = False

    def sees(self, backbone: Backbone) -> frozenset[int]:
        """Layers whose input hidden states `before_layer` wants to see."""
        return frozenset()

    def edits(self, backbone: Backbone) -> frozenset[int]:
        """Layers whose attention output `attend` edits."""
        return frozenset()

    def masks(self, backbone: Backbone) -> frozenset[int]:
        """Layers whose attention mask `edit_mask` edits."""
        return frozenset()

    def begin(self, sequence: CachedSequence, prefill: Prefill) -> Any:
        """Called once per sequence, before the prefill runs. Returns the memory."""
        return None

    def before_forward(self, step: Step, memory: Any, embeds: Tensor) -> None:
        """Called before the decoder runs, with its input embeddings (all rows)."""

    def before_layer(self, step: Step, memory: Any, layer: int, hidden: Tensor) -> None:
        """Called before decoder layer `layer` with its input (all rows)."""

    def attend(self, step: Step, memory: Any, call: AttentionCall) -> Tensor:
        """Return the edited attention output of `call`."""
        return call.output

    def fuses(self, step: Step) -> bool:
        """Whether `attend` uses `call.fused` and does not need the stock kernel's output."""
        return False

    def edit_mask(
        self, step: Step, memory: Any, layer: int, mask: Tensor | None, shape: tuple[int, int]
    ) -> Tensor | None:
        """Return the edited attention mask; `shape` is (queries, columns)."""
        return mask

    def undecided(self, sequence: CachedSequence) -> tuple[int, ...]:
        """Layers that it gates and edits, whose gates may be decided at the end of a step: see `fork.py`."""
        return ()

    def install(self, backbone: Backbone, current: CurrentStep) -> list[Any]:
        """Place hooks of your own (on an MLP, say), return their handles; `current.step` is the running step."""
        return []

    def complete(self, sequence: CachedSequence, memory: Any, passes: Tensor | None = None) -> None:
        """Record what was left for the end of the call; `passes` (rows, tokens) are those of tokens that stay."""

    def state(self, memory: Any) -> tuple[Tensor, ...]:
        """What changes from step to step: tensors (rows, ...), which follow beams and rows that go back."""
        return ()


class CurrentStep:
    """The step that this thread's forward pass is in, for hooks on modules that receive no keyword arguments."""

    def __init__(self) -> None:
        self._thread = threading.local()  # not a subclass of it, which torch.compile cannot trace

    @property
    def step(self) -> Step | None:
        """None outside of a forward pass."""
        return getattr(self._thread, "step", None)

    @step.setter
    def step(self, step: Step | None) -> None:
        self._thread.step = step


@dataclass
class CachedSequence:
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
    placement: object = None  # of its session, when it began
    prefill: Prefill | None = None  # kept for methods that ask in the middle of decoding
    taken_back: Tensor | None = None  # (rows, columns), bool: columns of tokens that were taken back
    forked: Forked | None = None  # gates that are decided at the end of a step, where its cache allows it

    def kept(self) -> CachedSequence:
        """A copy whose records stay when a captured step goes on to write to this one's addresses."""
        image = ImageColumns(self.image.columns.clone(), self.image.valid.clone())
        return replace(self, recorder=self.recorder.copied(), image=image)

    @property
    def all_rows(self) -> int:
        """Main and branch rows together."""
        return self.rows * (1 + self.branches)

    def take_back(self, row: int, columns: list[int], width: int) -> None:
        """Hide `columns` of a main row and its branch rows; `width` columns are filled."""
        device = self.image.valid.device
        if self.taken_back is None:
            self.taken_back = torch.zeros(self.rows, width, dtype=torch.bool, device=device)
        self.taken_back = torch.nn.functional.pad(self.taken_back, (0, width - self.taken_back.shape[1]))
        self.taken_back[row, columns] = True
        if self.hidden is not None:
            if self.hidden.shape[1] < width:  # never so in a captured step, whose addresses stay
                self.hidden = torch.nn.functional.pad(self.hidden, (0, width - self.hidden.shape[1]))
            for branch in range(1 + self.branches):
                self.hidden[branch * self.rows + row, columns] = True

    def follow(self, cache: Any) -> None:
        """Let the cache carry this sequence, and follow the cache through beam search."""
        reorder = type(cache).reorder_cache
        # Weak, or the cache would hold itself and live until the garbage collector finds the circle.
        bound = weakref.ref(cache)

        def reorder_cache(beam_idx: Tensor) -> None:
            reorder(bound(), self.all_index(beam_idx))
            self.reorder(beam_idx)

        setattr(cache, ATTRIBUTE, self)
        cache.reorder_cache = reorder_cache

    def reorder(self, index: Tensor) -> None:
        """Beam search picked the main rows `index`; take all per-row state along."""
        # Records stay where they were written; beam indices tell later which rows a winner went through.
        for intervention, memory in zip(self.interventions, self.memories, strict=True):
            for tensor in intervention.state(memory):
                tensor.copy_(tensor.index_select(0, index.to(tensor.device)))
        if self.hidden is not None:
            self.hidden.copy_(self.hidden.index_select(0, self.all_index(index).to(self.hidden.device)))
        if self.shift is not None:
            branch = self.all_index(index)[self.rows :] - self.rows
            self.shift.copy_(self.shift.index_select(-1, branch.to(self.shift.device)))

    @torch.no_grad()
    def complete(self, passes: Tensor | None) -> None:
        """The call has ended: what interventions have left for now. Where tokens were taken back, `passes` (rows,
        tokens) says which forward pass made each of those that stayed."""
        for intervention, memory in zip(self.interventions, self.memories, strict=True):
            intervention.complete(self, memory, passes)

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

        sees, edits, masks = (
            table([getattr(i, what)(backbone) for i in interventions]) for what in ("sees", "edits", "masks")
        )
        return cls(sees, edits, masks)


class Step:
    """One forward pass over a sequence. `scratch[i]` belongs to intervention `i` and dies with the pass."""

    def __init__(self, sequence: CachedSequence, prefill: Prefill | None) -> None:
        self.sequence = sequence
        self.prefill = prefill
        self.scratch: list[dict[str, Any]] = [{} for _ in sequence.interventions]
        self.recorder = sequence.recorder
        self.fork: Fork | None = None
        if prefill is None and sequence.forked is not None:
            self.fork = Fork(sequence.forked, sequence.backbone, sequence.recorder, sequence.all_rows)
        # The layers whose attention something changes: the others never ask.
        self.edited, self.masked = sequence.tables.edits, sequence.tables.masks

    def before_forward(self, embeds: Tensor) -> None:
        """Let the interventions that want to see the decoder's input embeddings."""
        for intervention, memory in zip(self.sequence.interventions, self.sequence.memories, strict=True):
            if type(intervention).before_forward is not Intervention.before_forward:
                intervention.before_forward(self, memory, embeds)

    def before_layer(self, layer: int, hidden: Tensor) -> None:
        """Let the interventions that asked for it see the input of `layer`."""
        for i in self.sequence.tables.sees[layer]:
            self.sequence.interventions[i].before_layer(self, self.sequence.memories[i], layer, hidden)

    def fuses(self, layer: int) -> bool:
        """Whether the one edit of `layer` can happen inside the attention kernel."""
        editing = self.edited[layer]
        return len(editing) == 1 and self.sequence.interventions[editing[0]].fuses(self)

    def edit_attention(self, call: AttentionCall) -> Tensor:
        """The attention output after all edits of this layer."""
        if self.prefill is not None:
            self.sequence.reached = True
        for i in self.edited[call.layer]:
            call.output = self.sequence.interventions[i].attend(self, self.sequence.memories[i], call)
        return call.output

    def edit_mask(self, layer: int, mask: Tensor | None, queries: int, columns: int) -> Tensor | None:
        """The attention mask after all edits of this layer."""
        if self.prefill is not None:
            self.sequence.reached = True
        for i in self.masked[layer]:
            intervention, memory = self.sequence.interventions[i], self.sequence.memories[i]
            mask = intervention.edit_mask(self, memory, layer, mask, (queries, columns))
        return mask

    def scratch_of(self, intervention: Intervention) -> dict[str, Any]:
        """The scratch of `intervention` in this pass."""
        for own, scratch in zip(self.sequence.interventions, self.scratch, strict=True):
            if own is intervention:
                return scratch
        raise KeyError(intervention)
