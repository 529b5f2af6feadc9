"""A lane: one method's answers, decoded together in as many slots as they need.

There is a step for 1, 2, 4, ... slots, each captured when it is first needed; the answers move to a wider one when
more come and to a narrower one when most have left. The host reads tokens a few steps late, so the device never
waits.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from seewhen.decoding.fast.slots import Choice, Slots, Storage
from seewhen.decoding.fast.tape import LAG
from seewhen.decoding.kernels.capturing import turn
from seewhen.decoding.sending import hosted, posted, sent
from seewhen.equations.drawing import drawn, keys_at
from seewhen.errors import UnsupportedMode

if TYPE_CHECKING:
    from seewhen.decoding.fast.reading import Read
    from seewhen.decoding.session import Session

_SPARSE = 4  # a step for this many times the answers is too wide


@dataclass(eq=False)
class Seat:
    """One answer in a lane."""

    choice: Choice
    limit: int  # tokens
    prompt: int  # columns
    notes: tuple[str, ...] = ()
    runners: int | None = None  # how many of the likeliest tokens are reported with each; None: nothing
    bias: Mapping[int, float] = field(default_factory=dict)  # added to the scores of tokens
    added: tuple[Tensor, Tensor] | None = None  # the same on the device: tokens and what is added
    slot: int = 0
    made: int = 0  # tokens chosen so far, of which the host may not have read the last
    opened: list[bool] = field(default_factory=list)  # at which of the tokens that were read some gate was open
    gone: bool = False

    @property
    def plain(self) -> bool:
        """Whether the likeliest token is taken, and nothing else is wanted."""
        return self.choice.temperature <= 0 and self.runners is None and not self.bias


@dataclass(frozen=True)
class Likely:
    """The log-probability of a token, and the likeliest in its place with theirs."""

    log_prob: float
    best: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Token:
    """A token of an answer that has arrived on the host."""

    seat: Seat
    id: int
    likely: Likely | None = None


@dataclass
class _Posted:
    """What one step has chosen, on its way to the host."""

    seats: tuple[Seat | None, ...]
    tokens: Tensor  # (rows,), or (2, rows) with whether some gate was open
    likely: dict[int, tuple[Tensor, Tensor, Tensor]]  # by row: log-probability, likeliest tokens, theirs
    arrived: Any

    @property
    def is_there(self) -> bool:
        """Whether the device has got there."""
        return self.arrived is None or bool(self.arrived.query())

    def read(self) -> Iterator[Token]:
        if self.arrived is not None:
            self.arrived.synchronize()
        tokens, *opened = self.tokens.view(-1, len(self.seats)).tolist()
        for row, (seat, token) in enumerate(zip(self.seats, tokens, strict=True)):
            if seat is not None and not seat.gone:
                seat.opened += [bool(of_rows[row]) for of_rows in opened]
                likely = None
                if row in self.likely:
                    chosen, ids, values = self.likely[row]
                    likely = Likely(float(chosen), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
                yield Token(seat, token, likely)


class Lane:
    """The answers of one method. Prompts longer than `columns` with their answers do not fit."""

    def __init__(self, session: Session, like: Read, widths: Sequence[int], columns: int) -> None:
        self.session, self.widths, self.columns = session, tuple(widths), columns
        self.image_room = like.sequence.image.columns.shape[1]
        self.storage = Storage(like, self.widths[-1], columns)
        self.steps: dict[int, Slots] = {}
        self.slots = self._step_for(self.widths[0], like)
        self.seats: list[Seat | None] = [None] * self.slots.slots
        # The form of a prompt, for wider steps.
        self._like = dataclasses.replace(like, cache=None, logits=like.logits[:0])
        self._posted: deque[_Posted] = deque()
        self._record = 0  # where the next step writes its records, less one

    @property
    def busy(self) -> int:
        """How many answers are in it."""
        return sum(seat is not None for seat in self.seats)

    @property
    def room(self) -> int:
        """How many more may come."""
        return self.widths[-1] - self.busy

    @property
    def waits(self) -> bool:
        """Whether there is something to do: an answer that goes on, or tokens to read."""
        return bool(self._posted) or self._goes_on

    @property
    def captured(self) -> bool:
        """Whether the next step needs no hooks on the model."""
        return self.slots.captured

    @property
    def bytes(self) -> int:
        """Of memory."""
        return self.storage.bytes + sum(step.bytes for step in self.steps.values())

    @property
    def _goes_on(self) -> bool:
        return any(seat is not None and seat.made < seat.limit for seat in self.seats)

    @torch.inference_mode()
    def join(self, read: Read, row: int, seat: Seat) -> None:
        """Let a prompt that was read take a seat; there must be room."""
        if read.length(row) + seat.limit > self.columns:  # a kernel would write into somebody else's columns
            raise UnsupportedMode(
                f"The prompt takes {read.length(row)} columns as the model reads it, more than were asked for.",
                "Ask for more, or decode it with `generate`.",
            )
        if None not in self.seats:
            self._change(next(width for width in self.widths if width > self.busy))
        slot = self.seats.index(None)
        seat.slot, seat.prompt, seat.notes = slot, read.length(row), read.notes
        self.seats[slot] = seat
        with turn(self.slots.device):
            self.slots.put(read, row, slot, seat.choice, self._record)
            logits = read.logits[row : row + 1]
            chosen = self._chosen(logits, [slot], (seat,))
            self.slots.buffers.token[slot] = chosen
            self._post(chosen, logits, (seat,), slot)

    @torch.inference_mode()
    def leave(self, seat: Seat) -> None:
        """An answer is over, or nobody wants it any more."""
        if seat.gone:
            return
        seat.gone = True
        self.seats[seat.slot] = None
        with turn(self.slots.device):
            self.slots.clear(seat.slot)
        narrow = next(width for width in self.widths if width >= self.busy)
        if self.busy and narrow * _SPARSE <= self.slots.slots:
            self._change(narrow)

    @torch.inference_mode()
    def advance(self) -> None:
        """One step of all answers, if one of them goes on."""
        if not self._goes_on:
            return
        seats, slots = tuple(self.seats), self.slots
        slots.run()
        self._record = (self._record + 1) % slots.sequence.recorder.capacity
        assert slots.output.logits is not None and slots.output.tokens is not None
        with turn(slots.device):
            tokens = slots.output.tokens
            if any(seat is not None and not seat.plain for seat in seats):
                tokens = self._chosen(slots.output.logits, list(range(slots.slots)), seats)
                slots.buffers.token.copy_(tokens[:, None])
            going = tuple(seat if seat is not None and seat.made < seat.limit else None for seat in seats)
            self._post(tokens, slots.output.logits, going)

    def arrived(self) -> Iterator[Token]:
        """Tokens that have come to the host: all but those of the last few steps, or all if none will follow."""
        while self._posted and (len(self._posted) > self._lag or not self._goes_on or self._posted[0].is_there):
            yield from self._posted.popleft().read()

    def fired(self, seat: Seat, tokens: int) -> int | None:
        """At how many of the first tokens of an answer some gate was open; None where the method has none."""
        return None if self._gate is None else sum(seat.opened[:tokens])

    # -- inside ------------------------------------------------------------------------------------------

    @property
    def _lag(self) -> int:
        return LAG if self.slots.device.type == "cuda" else 0

    @property
    def _gate(self) -> Tensor | None:
        """(records, slots, layers): which gates were open."""
        return self.slots.sequence.recorder.buffers.get("gate")

    def _step_for(self, width: int, like: Read) -> Slots:
        if width not in self.steps:
            self.steps[width] = Slots(self.session, self.storage, like, width)
        return self.steps[width]

    def _change(self, width: int) -> None:
        """Go on in a step for `width` slots."""
        before, self.slots = self.slots, self._step_for(width, self._like)
        sitting = [seat for seat in self.seats if seat is not None]
        # Who can stay stays: then nothing of its cache is moved.
        free = [slot for slot in range(width) if slot >= len(self.seats) or self.seats[slot] is None]
        moves = []
        for seat in sitting:
            new = seat.slot if seat.slot < width else free.pop(0)
            moves.append((seat.slot, new))
        with turn(self.slots.device):
            self.slots.take_over(before, moves)
        self.seats = [None] * width
        for seat, (_, new) in zip(sitting, moves, strict=True):
            seat.slot = new
            self.seats[new] = seat

    def _chosen(self, logits: Tensor, slots: list[int], seats: Sequence[Seat | None]) -> Tensor:
        """Tokens (rows,) for logits (rows, vocabulary) of these slots."""
        scores = logits
        biased = [(row, seat) for row, seat in enumerate(seats) if seat is not None and seat.bias]
        if biased:
            scores = scores.clone()
        for row, seat in biased:
            if seat.added is None:
                both = (list(seat.bias), [float(value) for value in seat.bias.values()])
                seat.added = (sent(both[0], scores.device), sent(both[1], scores.device))
            scores[row].index_add_(0, *seat.added)
        if any(seat is not None and seat.choice.temperature > 0 for seat in seats):
            first, last = slots[0], slots[-1] + 1
            own = {name: values[first:last] for name, values in self.slots.draws.items()}
            keys = keys_at(own.pop("stream"), self.slots.numbers[first:last])
            scores = drawn(scores, keys=keys, **own)
        return scores.argmax(dim=-1)

    def _post(self, tokens: Tensor, logits: Tensor, seats: tuple[Seat | None, ...], first: int = 0) -> None:
        """Send tokens of the slots from `first` on to the host."""
        likely: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        for row, seat in enumerate(seats):
            if seat is None:
                continue
            seat.made += 1
            if seat.made == seat.limit:
                self.slots.rest(seat.slot)
            if seat.runners is not None:
                chances = torch.log_softmax(logits[row], dim=-1)
                best = chances.topk(min(seat.runners, len(chances)))
                chosen = chances.gather(0, tokens[row : row + 1])[0]
                likely[row] = (hosted(chosen), hosted(best.indices), hosted(best.values))
        if self._gate is not None:  # with the tokens: asking later would wait for all steps that are queued
            opened = self._gate[self._record, first : first + len(tokens)].any(dim=-1)
            tokens = torch.stack([tokens, opened.to(tokens.dtype)])
        copy, arrived = posted(tokens)
        self._posted.append(_Posted(seats, copy, likely, arrived))
