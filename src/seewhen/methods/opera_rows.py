"""The rows of OPERA's forward passes: beams and candidates of many prompts, each as far as it has come.

Every pass feeds one token to every row, so a row's history is always the last columns of the cache without a gap,
and whatever lies before it is masked. A prompt that starts again is written to the last columns of its rows: from
then on these are just as long as its history. That is all it takes for prompts that went back to go on together
with the others, in every kind of cache layer: windows slide over the last columns, and states have no columns.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.decoding.sequence import CachedSequence
from seewhen.methods.opera_columns import Watched, column_logs

if TYPE_CHECKING:
    from seewhen.decoding.session import Session

_CPU_BYTES = 1 << 30


class Rows:
    """The cache of the last pass, and what the pass gave: logits and column products of each of its rows.

    A row is known by its number in the pass; the numbers after the last are those of the prompts (`prompt`).
    """

    def __init__(
        self, session: Session, sequence: CachedSequence, watched: Watched, cache: Any, logits: Tensor
    ) -> None:
        self.session, self.sequence, self.watched = session, sequence, watched
        self.start_cache, self.start_logits = cache, logits  # (prompts, vocabulary), float32
        self.cache, self.logits = cache, logits
        self.logs = logits.new_zeros(0, 0)  # (rows, columns): logarithms of the column products, to the right
        self.attention = logits.new_zeros(0, 0)  # (rows, columns of the cache)
        self.count = 0  # rows of the last pass

    def prompt(self, row: int) -> int:
        """The number of the row that has read prompt `row` and nothing else."""
        return self.count + row

    def feed(self, rows: Tensor, tokens: Tensor, prompts: Tensor, fed: Tensor, scale: float) -> None:
        """One pass over `tokens` (n,) after `rows` (n,), whose prompts and numbers of outputs so far are given.

        Afterwards row i is what was the i-th of `rows`, with its token.
        """
        n, device = len(rows), self.start_logits.device
        if n < self.sequence.rows and self.session.level != "summary":  # recorders count on that many
            more = torch.zeros(self.sequence.rows - n, dtype=torch.long)
            rows, tokens, prompts, fed = (torch.cat([t, t[more]]) for t in (rows, tokens, prompts, fed))
        columns = self._gather(rows, prompts, self.sequence.prompt_length + int(fed.max()))
        width = self._width()
        prompts, fed = prompts.to(device), fed.to(device)
        padding = self.watched.padding.to(device)[prompts].sum(dim=1)
        begin = width - self.sequence.prompt_length - fed + padding
        mask = torch.arange(width + 1, device=device) >= begin[:, None]
        positions = self.watched.last_position[..., prompts.to(self.watched.last_position.device)]
        self.sequence.recorder.step.zero_()
        output = self.session.backbone.driver(
            input_ids=tokens.to(device)[:, None],
            attention_mask=mask.long(),
            position_ids=(positions + 1 + fed.to(positions.device))[..., None],
            past_key_values=self.cache,
            use_cache=True,
            return_dict=True,
        )
        assert self.watched.row is not None
        self.count = n
        self.attention = self.watched.row[:n]
        self.logits = torch.cat([output.logits[:n, -1].float(), self.start_logits])
        outputs = int(fed.max()) + 1
        self.logs = column_logs(columns[:n, columns.shape[1] - outputs + 1 :], self.attention[:, -outputs:], scale)

    def on_image(self, rows: int, prompts: Tensor, fed: Tensor) -> Tensor:
        """How much of the attention of the first `rows` rows lies on the image."""
        image, device = self.sequence.image, self.attention.device
        before = self.attention.shape[1] - self.sequence.prompt_length - 1 - fed.to(device)
        index = prompts.to(image.columns.device)
        columns = image.columns[index].to(device) + before[:, None]
        weights = self.attention[:rows].gather(1, columns)
        return weights.masked_fill(~image.valid[index].to(device), 0.0).sum(dim=-1)

    def _width(self) -> int:
        return int(self.cache.get_seq_length())

    def _gather(self, rows: Tensor, prompts: Tensor, longest: int) -> Tensor:
        """Make `rows` the rows of the cache, `longest` columns wide; returns the same rows of the logs."""
        device = self.start_logits.device
        new = (rows >= self.count).nonzero().flatten().to(device)  # those that start with their prompt
        if len(new) == len(rows):
            # The copy keeps belonging to the same sequence (and must not copy the model behind it).
            self.cache = copy.deepcopy(self.start_cache, {id(self.sequence): self.sequence})
            for layer in self.cache.layers:
                layer.reorder_cache(prompts.to(device))
            return self.start_logits.new_zeros(len(rows), 0)
        index = rows.masked_fill(rows >= self.count, 0).to(device)
        origin = prompts.to(device)[new]
        drop = self._width() - longest
        for layer, first in zip(self.cache.layers, self.start_cache.layers, strict=True):
            layer.reorder_cache(index)
            if len(new):
                _write(layer, first, new, origin)
            if drop and isinstance(getattr(layer, "keys", None), Tensor):
                _drop(layer, drop)
        return self.logs[index]


def _states(layer: Any) -> Iterator[Tensor]:
    """What a layer keeps that has no columns."""
    for name in ("conv_states", "recurrent_states"):
        yield from (state for state in getattr(layer, name, {}).values() if state is not None)


def _write(layer: Any, first: Any, rows: Tensor, origin: Tensor) -> None:
    """Put rows `origin` of the layer `first` into `rows` of `layer`, to the right."""
    for name in ("keys", "values"):
        states = getattr(first, name, None)
        if isinstance(states, Tensor):
            place = rows.to(states.device)
            getattr(layer, name)[place, :, -states.shape[-2] :] = states[origin.to(states.device)]
    for state, old in zip(_states(layer), _states(first), strict=True):
        state[rows.to(old.device)] = old[origin.to(old.device)]


def _drop(layer: Any, columns: int) -> None:
    """Forget the first columns, which no row sees."""
    window = getattr(layer, "sliding_window", None)
    length = layer.get_seq_length() - columns
    if window is not None:
        layer.cumulative_length = length
        length = min(length, window - 1)
    layer.keys, layer.values = layer.keys[:, :, -length:], layer.values[:, :, -length:]


def prompts_at_once(cache: Any, prompt_length: int, longest: int, rows: int) -> int:
    """How many prompts of `rows` rows each fit into memory with their caches, twice: before and after a pass."""
    first = [t for layer in cache.layers for t in (getattr(layer, "keys", None), getattr(layer, "values", None))]
    tensors = [t for t in first if isinstance(t, Tensor)] + [t for layer in cache.layers for t in _states(layer)]
    one = sum(t.numel() * t.element_size() // t.shape[0] for t in tensors)
    one = one * (prompt_length + longest) // max(prompt_length, 1)
    device = tensors[0].device
    room = _CPU_BYTES
    if device.type == "cuda":  # others may want some of it, too
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        room = (torch.cuda.mem_get_info(device)[0] + idle) // 3
    return max(1, room // (2 * one * rows))
