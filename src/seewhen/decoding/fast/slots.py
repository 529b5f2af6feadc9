"""Slots: a fixed number of places in which answers are decoded together, each with its own length and state.

A prompt is read alone and its keys, values and state are copied into a free slot; the step that is captured for
this number of slots then goes on with it. Every slot counts its own columns from 0, so what is computed for one is
the same, bit for bit, whoever sits in the others and whenever it joined. An empty slot sees only itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import StaticCache

from seewhen.decoding.fast.forms import rebuilt, tensors
from seewhen.decoding.fast.step import Buffers, Output, forward_on
from seewhen.decoding.hosting import PREFIX
from seewhen.decoding.kernels.availability import kernels_run_on
from seewhen.decoding.kernels.capturing import captured_graph, turn
from seewhen.decoding.prefill import ImageColumns
from seewhen.decoding.recorder import Recorder
from seewhen.decoding.sequence import ATTRIBUTE, CachedSequence

if TYPE_CHECKING:
    from seewhen.decoding.fast.reading import Read
    from seewhen.decoding.session import Session


_LATER = 256  # times as many steps as before


@dataclass(frozen=True)
class Choice:
    """How the tokens of an answer are chosen: see `seewhen.equations.drawing`. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    min_p: float = 0.0
    stream: int = 0  # seed of its random numbers


class Storage:
    """Keys and values of all slots. A step for fewer slots uses the first rows of the same memory."""

    def __init__(self, like: Read, slots: int, columns: int) -> None:
        self.slots, self.columns, self.repeats = slots, columns, 1 + like.sequence.branches
        self.layers = [
            tuple(_room(part, slots * self.repeats, columns) for part in (layer.keys, layer.values))
            for layer in like.cache.layers
        ]

    @property
    def bytes(self) -> int:
        """Of memory."""
        return sum(part.numel() * part.element_size() for layer in self.layers for part in layer)

    def cache(self, config: Any, slots: int, lengths: Tensor) -> Any:
        """A static cache of the first rows, which takes one token of each row at its own length."""
        cache = StaticCache(config=config, max_cache_len=self.columns)
        for layer, (keys, values) in zip(cache.layers, self.layers, strict=True):
            rows = slots * self.repeats
            layer.keys, layer.values = keys[:rows], values[:rows]
            layer.dtype, layer.device = keys.dtype, keys.device
            layer.cumulative_length, layer.is_initialized = lengths, True
            layer.update = _taking(layer.keys, layer.values, lengths)
        return cache

    def put(self, read: Read, row: int, slot: int, slots: int) -> None:
        """Copy a prompt that was read into a slot of a step for `slots`."""
        skipped, length, rows = read.padding[row], read.length(row), read.sequence.rows
        new: list[Tensor] = []
        old: list[Tensor] = []
        for layer, source in zip(self.layers, read.cache.layers, strict=True):
            for part, given in zip(layer, (source.keys, source.values), strict=True):
                for branch in range(self.repeats):
                    new.append(part[slot + branch * slots, :, :length])
                    old.append(given[row + branch * rows, :, skipped : read.columns])
        torch._foreach_copy_(new, old)

    def move(self, moves: Sequence[tuple[int, int]], before: int, after: int) -> None:
        """Slots `moves` (from, to) of a step for `before` slots become those of a step for `after`."""
        pairs = [
            (old + branch * before, new + branch * after) for branch in range(self.repeats) for old, new in moves
        ]
        pairs = [(old, new) for old, new in pairs if old != new]
        if not pairs:
            return
        device = self.layers[0][0].device
        old, new = (torch.tensor(side, device=device) for side in zip(*pairs, strict=True))
        for layer in self.layers:
            for part in layer:
                part.index_copy_(0, new, part.index_select(0, old))


class Slots:
    """A step for a number of slots, and the state it works on."""

    def __init__(self, session: Session, storage: Storage, like: Read, slots: int) -> None:
        self.session, self.storage, self.slots = session, storage, slots
        self.device = like.logits.device
        self.sequence = _blank(like.sequence, slots, storage.columns, self.device)
        self.repeats = 1 + like.sequence.branches
        zeros = torch.zeros((slots, 1), dtype=torch.long, device=self.device)
        positions = None if like.positions is None else _wider(like.positions, slots, -2)
        self.buffers = Buffers(zeros.clone(), positions, zeros.clone(), _all_visible(slots, storage, self.device))
        self.active = zeros.clone()  # 1 where an answer goes on
        self.numbers = zeros[:, 0].clone()  # of each answer's newest token, from 0
        self.sequence.recorder.numbers = self.numbers
        self.draws = {
            name: torch.full((slots,), value, dtype=dtype, device=self.device)
            for name, value, dtype in (
                ("temperature", 0.0, torch.float32),
                ("top_p", 1.0, torch.float32),
                ("min_p", 0.0, torch.float32),
                ("stream", 0, torch.long),
            )
        }
        self._lengths = zeros[:, 0].repeat(self.repeats)
        config = like.model.config.get_text_config(decoder=True)
        self.cache = storage.cache(config, slots, self._lengths)
        setattr(self.cache, ATTRIBUTE, self.sequence)
        self.output = Output()
        self.made = 0  # steps so far
        self.captured = False
        self._try_at = 1  # steps after which it is captured
        self._step = self._prepared(like)

    @property
    def bytes(self) -> int:
        """Of memory, without keys, values and what a captured step keeps for itself."""
        return sum(tensor.numel() * tensor.element_size() for tensor, _ in self._rows())

    def _prepared(self, like: Read) -> Callable[[], None]:
        constants = {
            name: _wider(value, self.slots, 0) if isinstance(value, Tensor) else value
            for name, value in like.constants.items()
        }
        template = _mask_like(self.session, self.device)
        forward = forward_on(like.model, constants, template, self.buffers, self.cache)
        recorder, buffers = self.sequence.recorder, self.buffers

        def run() -> None:
            self._lengths.copy_(buffers.length[:, 0].repeat(self.repeats))
            self.numbers.add_(self.active[:, 0])
            self.output.logits = forward()
            self.output.tokens = self.output.logits.argmax(dim=-1)
            buffers.token.copy_(self.output.tokens[:, None])
            buffers.length.add_(self.active)
            if buffers.positions is not None:
                buffers.positions.add_(self.active)
            # The next step is one further, and after the last record comes the first again.
            recorder.step.add_(1).remainder_(recorder.capacity).sub_(1)

        return run

    def run(self) -> None:
        """One step. The first runs as it is; the second finds a captured one. If that failed (memory may have been
        short), it is tried again much later."""
        self.sequence.placement = self.session.placement
        with turn(self.device):
            if self.made == self._try_at and self.device.type == "cuda" and not self.captured:
                self._try_at *= _LATER
                self._step, self.captured = captured_graph(self._step)
            self._step()
        self.made += 1

    # -- who sits where ----------------------------------------------------------------------------------

    def put(self, read: Read, row: int, slot: int, choice: Choice, number: int) -> None:
        """Let a prompt that was read go on in `slot`; `number` is where the records of its first token go."""
        self.storage.put(read, row, slot, self.slots)
        source, target = read.sequence, self.sequence
        valid = source.image.valid[row]
        target.image.columns[slot] = (source.image.columns[row] - read.padding[row]).masked_fill(~valid, 0)
        target.image.valid[slot] = valid
        for mine, theirs in zip(tensors(target.memories), tensors(source.memories), strict=True):
            mine[slot] = theirs[row]
        for name, records in target.recorder.buffers.items():
            records[number, slot] = source.recorder.buffers[name][0, row]
        if target.hidden is not None and target.shift is not None:
            assert source.hidden is not None and source.shift is not None
            for branch in range(self.repeats):
                seen = target.hidden[slot + branch * self.slots]
                seen.zero_()
                seen[: read.length(row)] = source.hidden[
                    row + branch * source.rows, read.padding[row] : read.columns
                ]
            for branch in range(self.repeats - 1):
                target.shift[..., slot + branch * self.slots] = source.shift[..., row + branch * source.rows]
        self.sequence.reached = source.reached
        if self.buffers.positions is not None:
            assert read.positions is not None
            self.buffers.positions[..., slot, :] = read.positions[..., row, :]
        self.buffers.length[slot] = read.length(row)
        self.active[slot], self.numbers[slot] = 1, 0
        for name, values in self.draws.items():
            values[slot] = getattr(choice, name)

    def rest(self, slot: int) -> None:
        """The answer in `slot` goes no further."""
        self.active[slot] = 0

    def clear(self, slot: int) -> None:
        """Nobody sits in `slot` any more."""
        self.active[slot] = self.numbers[slot] = self.buffers.length[slot] = 0
        self.draws["temperature"][slot] = 0.0
        self.sequence.image.valid[slot] = False
        if self.sequence.hidden is not None:
            self.sequence.hidden[slot :: self.slots] = False

    def take_over(self, other: Slots, moves: Sequence[tuple[int, int]]) -> None:
        """Go on with the answers of `other`, another number of slots of this storage: `moves` are (from, to)."""
        for slot in range(self.slots):
            self.clear(slot)
        self.storage.move(moves, other.slots, self.slots)
        self.sequence.recorder.step.copy_(other.sequence.recorder.step)
        self.sequence.reached = other.sequence.reached
        if not moves:
            return
        old, new = (torch.tensor(side, device=self.device) for side in zip(*moves, strict=True))
        for (mine, dim), (theirs, _) in zip(self._rows(), other._rows(), strict=True):
            mine.index_copy_(dim, new, theirs.index_select(dim, old))
        ours, others = self.sequence, other.sequence
        if ours.hidden is not None and ours.shift is not None:
            assert others.hidden is not None and others.shift is not None
            all_new, all_old = ours.all_index(new), others.all_index(old)
            ours.hidden.index_copy_(0, all_new, others.hidden.index_select(0, all_old))
            branch_new, branch_old = all_new[len(new) :] - self.slots, all_old[len(old) :] - other.slots
            ours.shift.index_copy_(-1, branch_new, others.shift.index_select(-1, branch_old))

    def _rows(self) -> list[tuple[Tensor, int]]:
        """All that a main row has, and in which dimension."""
        buffers, sequence = self.buffers, self.sequence
        first = [buffers.token, buffers.length, self.active, self.numbers, *self.draws.values()]
        first += [sequence.image.columns, sequence.image.valid, *tensors(sequence.memories)]
        rows = [(tensor, 0) for tensor in first]
        rows += [(records, 1) for records in sequence.recorder.buffers.values()]
        if buffers.positions is not None:
            rows.append((buffers.positions, buffers.positions.dim() - 2))
        return rows


def _taking(keys: Tensor, values: Tensor, lengths: Tensor) -> Callable[..., tuple[Tensor, Tensor]]:
    """What a layer does with one token of each row."""
    rows = torch.arange(len(keys), device=keys.device)
    fused = kernels_run_on(keys.device)

    def update(key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if fused and key.stride(-1) == value.stride(-1) == 1:
            from seewhen.decoding.kernels.cache_kernel import write_at

            write_at(keys, values, lengths, key, value)
        else:
            keys[rows, :, lengths] = key[:, :, 0]
            values[rows, :, lengths] = value[:, :, 0]
        return keys, values

    return update


def _room(part: Tensor, rows: int, columns: int) -> Tensor:
    return torch.zeros((rows, part.shape[1], columns, part.shape[3]), dtype=part.dtype, device=part.device)


def _all_visible(slots: int, storage: Storage, device: torch.device) -> Tensor:
    return torch.ones((slots, storage.columns), dtype=torch.bool, device=device)


def _mask_like(session: Session, device: torch.device) -> Tensor:
    """A mask of the kind that the model's attention takes: boolean, or added to the scores."""
    kernel = session.backbone.decoder.config._attn_implementation.removeprefix(PREFIX)
    dtype = session.backbone.decoder.dtype if kernel == "eager" else torch.bool
    return torch.zeros((1, 1, 1, 1), dtype=dtype, device=device)


def _wider(value: Tensor, rows: int, dim: int) -> Tensor:
    """The first row, as often as there are rows."""
    first = value.narrow(dim, 0, 1)
    repeats = [1] * value.dim()
    repeats[dim] = rows
    return first.repeat(repeats)


def _blank(like: CachedSequence, slots: int, columns: int, device: torch.device) -> CachedSequence:
    """A sequence of `slots` rows in the form of another, with nobody in it."""
    recorder = Recorder(like.recorder.level, slots, like.recorder.layers, columns, device)
    for name, records in like.recorder.buffers.items():
        fill: float | bool = False if records.dtype == torch.bool else torch.nan
        recorder.declare(name, (slots, *records.shape[2:]), fill)
    rows = slots * (1 + like.branches)
    tokens = like.image.columns.shape[1]
    return dataclasses.replace(
        like,
        rows=slots,
        recorder=recorder,
        growing=False,
        image=ImageColumns(
            torch.zeros((slots, tokens), dtype=torch.long, device=device),
            torch.zeros((slots, tokens), dtype=torch.bool, device=device),
        ),
        memories=rebuilt(like.memories, lambda tensor: tensor.new_zeros((slots, *tensor.shape[1:]))),
        hidden=None if like.hidden is None else torch.zeros((rows, columns), dtype=torch.bool, device=device),
        shift=None if like.shift is None else like.shift.new_zeros((*like.shift.shape[:-1], rows - slots)),
        prefill=None,
        taken_back=None,
    )
