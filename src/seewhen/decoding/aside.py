"""Aside: a question to the bare model in the middle of decoding, on what it has read already.

A question is text that follows the image, the prompt or the answer so far. Keys and values up to that place are
those of the running sequence: tilts change the newest row only, so what the image's columns hold is what the plain
model would hold. They are copied into a cache of the question's own, in which the question is read; the running
sequence never notices. The vision tower does not run again, and neither does the prompt.

Layers that keep a window or a state instead of columns have nothing left of that place. For them the prompt up to
there is read once more from its embeddings, and kept for all questions that follow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, StaticLayer

from seewhen.decoding.drafting import Draft, DraftPasses, drawn, marks_of, stream_of
from seewhen.decoding.prefill import Prefill, own_masks
from seewhen.decoding.sending import sent
from seewhen.decoding.sequence import ATTRIBUTE
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.calls import Calls
    from seewhen.decoding.kept import Kept
    from seewhen.decoding.sequence import CachedSequence, CurrentStep

Place = Literal["image", "prompt", "now"]


class RunningSession(Protocol):
    """What is needed of the session that decodes."""

    backbone: Backbone
    current: CurrentStep
    calls: Calls
    questions: Kept[Any]

    def warn(self, message: str) -> None: ...


class Aside:
    """Questions about one running sequence. Made by the decoding loop for methods with a judge."""

    def __init__(
        self,
        session: RunningSession,
        cache: Any,
        arrive: Callable[[], None] = lambda: None,
        longest: int = 0,
        ends: Collection[int] = frozenset(),
    ) -> None:
        sequence: CachedSequence = getattr(cache, ATTRIBUTE)
        assert sequence.prefill is not None  # kept for methods with a judge
        self.sequence, self.prefill = sequence, sequence.prefill
        self._session, self._cache, self._backbone = session, cache, session.backbone
        self.longest, self.ends = longest, ends  # the most tokens of an answer, and those that end one
        self.given_up: Callable[[], bool] = lambda: False  # whether nobody waits for any answer
        self._arrive = arrive  # sees to it that the cache holds the newest token
        self._plain = _is_plain(cache, self.prefill)
        self._read: dict[tuple[int, int], DynamicCache] = {}  # the prompt of a row up to a column, read again
        self._images: list[int] | None = None  # the column behind each row's last image
        self._starts: dict[tuple[int, int], Tensor] = {}  # the position that follows a column of a row's prompt
        self.filled = sequence.prompt_length  # columns of the running cache; the loop counts on

    @property
    def with_image(self) -> Tensor:
        """Which rows have an image to ask about, bool."""
        return self.sequence.image.valid.any(dim=1)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the running `generate` call that are the method's own."""
        return self._session.calls.current.options

    def warn(self, message: str) -> None:
        """A note in the running call."""
        self._session.warn(message)

    def copied(self, columns: int) -> DynamicCache | None:
        """The prompt's first `columns` columns of all rows in a cache of its own; None where layers keep none.

        Outside of inference mode it can be differentiated after.
        """
        cache = DynamicCache(config=self._backbone.decoder.config)
        if not all(isinstance(layer, DynamicLayer) for layer in cache.layers):
            return None
        if not columns:
            return cache
        if self._plain:
            return self._running(torch.arange(self.sequence.rows), columns)
        seen = (~self.prefill.padding[:, :columns]).long()
        positions = self.prefill.position_ids[..., :columns].clone()
        self._backbone.read(self.prefill.embeds[:, :columns].clone(), seen, positions, cache)
        return cache

    def _running(self, rows: Tensor, width: int) -> DynamicCache:
        """The first `width` columns of these rows of the running cache, in a cache of their own."""
        cache = DynamicCache(config=self._backbone.decoder.config)
        for number, layer in enumerate(self._cache.layers):
            place = rows.to(layer.keys.device)
            cache.update(layer.keys[place, :, :width], layer.values[place, :, :width], number)
        return cache

    @torch.no_grad()
    def ask(self, rows: Sequence[int], token_ids: Sequence[Sequence[int]], after: Place = "image") -> Tensor:
        """What follows each question: logits (questions, vocabulary); `rows[i]` is asked `token_ids[i]`.

        All questions go through the decoder together.
        """
        if not rows:
            return torch.zeros(0, 0)
        ends = [self._end(row, after) for row in rows]
        with self._bare():
            if self._plain:
                return self._ask_together(rows, ends, token_ids)
            return torch.cat(
                [self._ask_alone(row, end, ids) for row, end, ids in zip(rows, ends, token_ids, strict=True)]
            )

    @contextmanager
    def _bare(self) -> Iterator[None]:
        """No step is running: hooks on modules have nothing to do."""
        current = self._session.current
        step, current.step = current.step, None
        try:
            yield
        finally:
            current.step = step

    # -- drafts ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def drafts(self, rows: Sequence[int], count: int) -> dict[int, list[Draft]]:
        """`count` further texts of each row's prompt, of up to `longest` tokens, without the one that ends it.

        Rows of the same prompt (several answers to one request) have the same texts, which are drawn once.
        """
        if not rows:
            return {}
        if _is_prefix_lm(self.prefill):
            raise UnsupportedMode(
                "Drafts begin before the prompt's last token, which this model reads both ways.", "Use drafts=0."
            )
        marks = marks_of(self.prefill.embeds, self.prefill.image_mask)
        first = self._alike(rows, marks)
        different = list(dict.fromkeys(first.values()))
        found: dict[int, list[Draft]] = {}
        with self._bare():
            for some in [different] if self._plain else [[row] for row in different]:
                last = self.prefill.embeds[:, -1:]
                index = sent([row for row in some for _ in range(count)], last.device)
                passes = self._begun(index) if self._plain else self._begun_alone(some[0], count)
                keys = sent([stream_of(marks[row], n) for row in some for n in range(count)], last.device)
                texts = drawn(passes, last[index], keys, self.longest, self.ends, self.given_up)
                found |= {row: texts[n * count : (n + 1) * count] for n, row in enumerate(some)}
        return {row: found[first[row]] for row in rows}

    def _alike(self, rows: Sequence[int], marks: Sequence[Sequence[float]]) -> dict[int, int]:
        """Row -> the first of `rows` with the same prompt. Only what is marked alike is compared."""
        embeds, padding = self.prefill.embeds, self.prefill.padding
        first: dict[int, int] = {}
        for row in rows:
            others = (r for r in dict.fromkeys(first.values()) if list(marks[r]) == list(marks[row]))
            same = (
                r for r in others if torch.equal(padding[r], padding[row]) and torch.equal(embeds[r], embeds[row])
            )
            first[row] = next(same, row)
        return first

    def _begun(self, index: Tensor) -> DraftPasses:
        """Before the prompt's last token, on copies of the running columns of the rows `index`."""
        width = self.prefill.embeds.shape[1] - 1
        positions = self.prefill.position_ids[..., -1:]
        positions = positions.expand(*positions.shape[:-2], len(self.prefill.embeds), 1)
        cache, seen = self._running(index, width), ~self._unseen(width)[index]
        return DraftPasses(self._backbone, cache, seen, positions[..., index, :])

    def _begun_alone(self, row: int, count: int) -> DraftPasses:
        """The same for one row whose layers keep no columns: its prompt is read again, once for all drafts."""
        width = self.prefill.embeds.shape[1] - 1
        if (row, width) not in self._read:
            self._read[row, width] = self._read_again(row, width)
        cache = copy.deepcopy(self._read[row, width])
        cache.reorder_cache(torch.zeros(count, dtype=torch.long, device=self.prefill.embeds.device))
        length = width - int(self.prefill.padding[row].sum())
        seen = torch.ones(count, length, dtype=torch.bool, device=self.prefill.embeds.device)
        positions = self.prefill.position_ids[..., row : row + 1, -1:]
        return DraftPasses(self._backbone, cache, seen, positions.expand(*positions.shape[:-2], count, 1))

    # -- questions ---------------------------------------------------------------------------------------------

    def _end(self, row: int, after: Place) -> int:
        """The column before which a question of this row begins."""
        prompt = self.prefill.embeds.shape[1]
        if after == "now":
            self._arrive()
            return self.filled
        if after == "prompt":
            return prompt
        if self._images is None:  # all rows at once: each look at the device holds up decoding
            places = torch.arange(1, self.prefill.image_mask.shape[1] + 1, device=self.prefill.image_mask.device)
            self._images = (self.prefill.image_mask * places).amax(dim=1).tolist()
        if not self._images[row]:
            raise UnsupportedMode("This row has no image to ask about.", "Ask after the prompt instead.")
        return self._images[row]

    def _start(self, row: int, end: int) -> Tensor:
        """The position of a question's first token, ([axes,] 1)."""
        positions = self.prefill.position_ids[..., row, :]
        if end < positions.shape[-1]:  # where the prompt itself went on, behind padding that may follow the image
            if (row, end) not in self._starts:
                place = end + int((~self.prefill.padding[row, end:]).int().argmax())
                self._starts[row, end] = positions[..., place : place + 1]
            return self._starts[row, end]
        hidden = self.sequence.taken_back
        past = end - positions.shape[-1]
        taken = 0 if hidden is None else int(hidden[row, positions.shape[-1] : end].sum())
        return positions[..., -1:] + 1 + past - taken

    def _ask_together(
        self, rows: Sequence[int], ends: Sequence[int], token_ids: Sequence[Sequence[int]]
    ) -> Tensor:
        """One pass; every row sees its own columns only."""
        width, device = max(ends), self.prefill.embeds.device
        index = sent(rows, device)
        seen = torch.arange(width, device=device)[None] < sent(ends, device)[:, None]
        seen &= ~self._unseen(width)[index]
        ids, lengths = _padded(token_ids, device)
        starts = torch.stack([self._start(row, end) for row, end in zip(rows, ends, strict=True)], dim=-2)
        if self._captures:
            from seewhen.decoding.captured_questions import CapturedQuestions

            questions = CapturedQuestions(index, seen, ids, starts, lengths)
            return questions.asked(self._backbone, self._cache, self._session.questions)
        return self._logits(self._running(index, width), seen, ids, starts, lengths)

    @property
    def _captures(self) -> bool:
        """Whether questions go through captured passes: where steps do."""
        return all(type(layer) is StaticLayer for layer in self._cache.layers)

    def _unseen(self, width: int) -> Tensor:
        """Padding, and what was taken back: (rows, width), bool."""
        padding = self.prefill.padding
        unseen = torch.nn.functional.pad(padding, (0, max(width - padding.shape[1], 0)))[:, :width]
        taken = self.sequence.taken_back
        if taken is not None:
            unseen = unseen | torch.nn.functional.pad(taken, (0, max(width - taken.shape[1], 0)))[:, :width]
        return unseen

    def _logits(self, cache: Any, seen: Tensor, ids: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        embeds = self._backbone.decoder.get_input_embeddings()(ids).to(self.prefill.embeds.dtype)
        mask = torch.cat([seen, torch.ones_like(ids, dtype=torch.bool)], dim=1).long()
        positions = starts + torch.arange(ids.shape[1], device=ids.device)
        hidden = self._backbone.read(embeds, mask, positions, cache)
        last = hidden[torch.arange(len(ids), device=ids.device), lengths - 1]
        return self._backbone.project(last).float()

    # -- layers without columns --------------------------------------------------------------------------------

    def _ask_alone(self, row: int, end: int, token_ids: Sequence[int]) -> Tensor:
        device = self.prefill.embeds.device
        ids = torch.tensor([list(token_ids)], device=device)
        if end > self.prefill.embeds.shape[1]:
            cache = DynamicCache(config=self._backbone.decoder.config)
            cache.layers = copy.deepcopy(self._cache.layers)
            cache.reorder_cache(torch.tensor([row], device=device))
            seen = ~self._unseen(end)[row : row + 1]
        elif _is_prefix_lm(self.prefill):
            return self._whole(row, end, ids)
        else:
            if (row, end) not in self._read:
                self._read[row, end] = self._read_again(row, end)
            cache = copy.deepcopy(self._read[row, end])
            seen = torch.ones(1, int(cache.get_seq_length()), dtype=torch.bool, device=device)
        return self._logits(cache, seen, ids, self._start(row, end)[..., None, :], torch.tensor([ids.shape[1]]))

    def _read_again(self, row: int, end: int) -> DynamicCache:
        cache = DynamicCache(config=self._backbone.decoder.config)
        first = int(self.prefill.padding[row].sum())
        self._forward(row, first, end, self.prefill.embeds[row : row + 1, first:end], cache)
        return cache

    def _whole(self, row: int, end: int, ids: Tensor) -> Tensor:
        """Image and question read both ways, as the prompt is in such models."""
        first = int(self.prefill.padding[row].sum())
        words = self._backbone.decoder.get_input_embeddings()(ids).to(self.prefill.embeds.dtype)
        embeds = torch.cat([self.prefill.embeds[row : row + 1, first:end], words], dim=1)
        return self._backbone.project(self._forward(row, first, end, embeds, None)[:, -1]).float()

    def _forward(self, row: int, first: int, end: int, embeds: Tensor, cache: Any) -> Tensor:
        """The bare decoder over a row's prompt from column `first` to `end`, and what `embeds` has beyond it."""
        new = embeds.shape[1] - (end - first)
        positions = self.prefill.position_ids[..., row : row + 1, first:end]
        if new:
            following = self._start(row, end)[..., None, :] + torch.arange(new, device=embeds.device)
            positions = torch.cat([positions, following], dim=-1)
        seen = torch.ones(embeds.shape[:2], dtype=torch.long, device=embeds.device)
        mask: Any = seen
        types = self.prefill.inputs.get("token_type_ids")
        if isinstance(types, Tensor):
            start = first - self.sequence.widened  # columns before the prompt as it was given
            own = types[row % len(types), None, start : start + end - first].to(embeds.device)
            own = torch.nn.functional.pad(own, (0, new))
            mask = own_masks(self._backbone, embeds, seen, cache, positions, own)
        return self._backbone.read(
            embeds, mask, positions, cache, **_extras_of(self.prefill, row, first, end, new)
        )


def _is_plain(cache: Any, prefill: Prefill) -> bool:
    """Whether every layer still holds all columns, each computed from what lies before it alone."""
    columns = all(type(layer) in (DynamicLayer, StaticLayer) for layer in cache.layers)
    return columns and not isinstance(prefill.inputs.get("token_type_ids"), Tensor)


def _is_prefix_lm(prefill: Prefill) -> bool:
    """Token types that do not tell image from text: the whole prompt is read both ways."""
    types = prefill.inputs.get("token_type_ids")
    return isinstance(types, Tensor) and not bool(types.any())


def _padded(token_ids: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Questions of other lengths side by side, padded on the right where nothing looks back; and their lengths."""
    longest = max(len(ids) for ids in token_ids)
    rows = [[*ids, *[ids[-1]] * (longest - len(ids))] for ids in token_ids]
    return sent(rows, device), sent([len(ids) for ids in token_ids], device)


def _extras_of(prefill: Prefill, row: int, first: int, end: int, new: int) -> dict[str, Any]:
    """Other decoder arguments (deep visual features) of one row's columns."""
    visual = next((extra for extra in prefill.extras.values() if isinstance(extra, Tensor)), None)
    if visual is None:
        return {}
    places = visual.nonzero()
    mine = (places[:, 0] == row) & (places[:, 1] >= first) & (places[:, 1] < end)
    found: dict[str, Any] = {}
    for name, extra in prefill.extras.items():
        if isinstance(extra, Tensor):
            found[name] = torch.nn.functional.pad(extra[row : row + 1, first:end], (0, new))
        else:
            found[name] = [feature[mine.to(feature.device)] for feature in extra]
    return found
