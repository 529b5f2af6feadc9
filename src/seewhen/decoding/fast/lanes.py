"""All lanes of one model: which methods have one, how much memory they take, and whose hooks are on the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import StaticCache
from transformers.cache_utils import StaticLayer

from seewhen.backbones.prompts import on_device
from seewhen.decoding.fast import Fast, FastDecoding, quickened, resolve
from seewhen.decoding.fast.beside import Beside
from seewhen.decoding.fast.lane import Lane, Seat, Token
from seewhen.decoding.fast.prompts import Tower
from seewhen.decoding.fast.reading import Read, Reader
from seewhen.decoding.session import Session, attached_session
from seewhen.errors import SeewhenError

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.method import Method

_COLUMNS = 512  # a lane has a multiple of this, doubled until a prompt fits
_IMAGE = 64  # and room for a multiple of this of image tokens
_KERNELS = ("sdpa", "eager")  # whose masks we can write ourselves
_MOST = 8  # lanes: captured steps hold memory of their own
_SHARE = 0.8  # of the memory that is free when the first lane is made


@dataclass(frozen=True)
class _Method:
    """A method made ready for the model."""

    session: Session
    fast: FastDecoding
    reader: Reader


class Lanes:
    """The lanes of one model. Not for several threads."""

    def __init__(
        self,
        model: Any,
        backbone: Backbone,
        slots: int = 32,
        fast: Fast = "auto",
        budget: int | None = None,
        widths: Sequence[int] | None = None,
    ) -> None:
        """`slots` answers of a method at once, in `budget` bytes of memory for all methods together. `widths` are
        the numbers of slots for which there is a step; with one, an answer has the same bits in any company."""
        self.model, self.backbone, self.fast = model, backbone, fast
        self.widths = tuple(widths or _powers(slots))
        self._budget = budget
        self.lanes: dict[tuple[str, int, int], Lane] = {}  # by method, columns, image tokens; oldest use first
        self._sessions: dict[str, _Method] = {}
        self._tower = Tower()
        self._beside = Beside(next(backbone.decoder.parameters()).device)
        self._placed = ExitStack()
        self._session: Session | None = None

    @property
    def budget(self) -> int:
        """Bytes for all lanes: what is given, or most of what is free when the first is made."""
        if self._budget is None:
            self._budget = _free(self.backbone)
        return self._budget

    @budget.setter
    def budget(self, budget: int) -> None:
        self._budget = budget

    def serves(self, method: Method) -> bool:
        """Whether answers of this method can join each other in the middle."""
        if not self._layers_allow or not method.joins or not method.batches or method.generation_defaults():
            return False
        try:
            parts, fast = method.parts(self.backbone), resolve(self.fast, self.backbone, method)
        except SeewhenError:  # it does not fit this model; whoever tries to use it is told
            return False
        apart = all(intervention.rows_apart for intervention in parts.interventions)
        return fast is not None and apart and parts.judge is None and parts.loop is None

    @property
    def _layers_allow(self) -> bool:
        config = self.model.config.get_text_config(decoder=True)
        kernel = self.backbone.decoder.config._attn_implementation.removeprefix("seewhen_")
        layers = StaticCache(config=config, max_cache_len=_COLUMNS).layers
        plain = all(type(layer) is StaticLayer for layer in layers) and not self.model.config.is_encoder_decoder
        return plain and (kernel in _KERNELS or kernel == "fast")

    # -- joining -----------------------------------------------------------------------------------------

    def fits(self, method: Method, columns: int, images: int, answers: int) -> bool:
        """Whether `answers` to a prompt could join now: there is room, or memory for a lane."""
        lane = self._lane(method, columns, images)
        if lane is not None:
            return lane.room >= answers
        return self._widths(method, columns, images)[-1:] >= (answers,)

    @torch.inference_mode()
    def join(
        self, method: Method, inputs: Mapping[str, Any], columns: int, seats: Sequence[Sequence[Seat]]
    ) -> Lane:
        """Read prompts (as for `generate`; best where the host can look at them) and let the answers of each row
        join; with its answer none has more than `columns` columns."""
        images = int(self.backbone.image_mask(inputs["input_ids"]).sum(dim=1).max())
        own = self._session_of(method)
        lane = self._lane(method, columns, images)
        own.session.image_room = _image_room(images) if lane is None else lane.image_room
        self._place(own)
        with self._beside.reading():
            found = own.reader.read(self.model, on_device(self.model, inputs))
        if lane is None:
            lane = self._make(method, found, columns, images)
        try:
            for row, answers in enumerate(seats):
                for seat in answers:
                    lane.join(found, row, seat)
        except Exception:  # all or none
            for seat in [seat for answers in seats for seat in answers if seat in lane.seats]:
                lane.leave(seat)
            raise
        self._beside.taken()
        return lane

    def _make(self, method: Method, like: Read, columns: int, images: int) -> Lane:
        own, widths = self._session_of(method), self._widths(method, columns, images)
        self._evict(self._bytes(method, columns) * widths[-1] + own.reader.bytes)
        lane = Lane(own.session, like, widths, _columns(columns))
        self.lanes[method.fingerprint, lane.columns, lane.image_room] = lane
        return lane

    def _lane(self, method: Method, columns: int, images: int) -> Lane | None:
        """The smallest lane of a method that takes such a prompt; one that is full takes none."""
        fitting = [
            key for key in self.lanes if key[0] == method.fingerprint and key[1] >= columns and key[2] >= images
        ]
        if not fitting:
            return None
        key = min(fitting, key=lambda each: each[1:])
        lane = self.lanes.pop(key)
        if not lane.busy and self._widths(method, *key[1:])[-1:] > lane.widths[-1:]:
            return None  # made narrow when memory was short: a wider one takes its place
        self.lanes[key] = lane  # used last
        return lane

    def _widths(self, method: Method, columns: int, images: int) -> tuple[int, ...]:
        """Numbers of slots that a new lane can have, when the lanes that nobody uses are gone."""
        busy = [lane for lane in self.lanes.values() if lane.busy]
        if len(busy) >= _MOST:
            return ()
        left = self.budget - self._taken(busy)
        each = self._bytes(method, columns)
        return tuple(width for width in self.widths if width * each <= left)

    def _bytes(self, method: Method, columns: int) -> int:
        """Of the keys and values of one slot."""
        rows = 1 + len(method.parts(self.backbone).branches)
        return rows * _columns(columns) * bytes_per_column(self.backbone)

    def _taken(self, lanes: Iterable[Lane]) -> int:
        """Bytes of these lanes, and of what their methods read prompts into."""
        lanes = list(lanes)
        sessions = {lane.session for lane in lanes}
        readers = [each.reader for each in self._sessions.values() if each.session in sessions]
        return sum(lane.bytes for lane in lanes) + sum(reader.bytes for reader in readers)

    def _evict(self, needed: int) -> None:
        """Give up lanes that nobody uses, the longest unused first, until there is memory for another."""
        for key in list(self.lanes):
            if self._taken(self.lanes.values()) + needed <= self.budget and len(self.lanes) < _MOST:
                return
            if not self.lanes[key].busy:
                del self.lanes[key]
                self._tidy()

    def _tidy(self) -> None:
        """Forget methods without a lane: what they read prompts into takes memory, and clients can make up any
        number of parameters."""
        used = {key[0] for key in self.lanes}
        self._sessions = {
            name: each for name, each in self._sessions.items() if name in used or each.session is self._session
        }

    def spare(self) -> None:
        """Memory ran out: give up what nobody uses, and take no more than is taken now."""
        self.lanes = {key: lane for key, lane in self.lanes.items() if lane.busy}
        self._tidy()
        self.budget = self._taken(self.lanes.values()) or self.budget // 2

    def forget(self, lane: Lane) -> None:
        """A lane in which something went wrong: what it holds is unknown."""
        for key in [key for key, each in self.lanes.items() if each is lane]:
            del self.lanes[key]

    # -- decoding ----------------------------------------------------------------------------------------

    @torch.inference_mode()
    def advance(self, lane: Lane) -> Iterator[Token]:
        """One step of a lane; the tokens that have come to the host."""
        if not lane.captured:  # it runs as it is, or is captured now: with its hooks
            self._place(self._session_of(lane.session.method))
            self._beside.in_turn()
        lane.advance()
        return lane.arrived()

    @property
    def busy(self) -> list[Lane]:
        """Lanes in which something is to do."""
        return [lane for lane in self.lanes.values() if lane.busy or lane.waits]

    # -- whose hooks are on the model --------------------------------------------------------------------

    def _session_of(self, method: Method) -> _Method:
        if method.fingerprint not in self._sessions:
            fast = resolve(self.fast, self.backbone, method)
            assert fast is not None
            session = Session(self.backbone, method, fast=fast.kernels)
            session.quiet = True  # what it has to say is a note on the answer
            self._tidy()
            self._sessions[method.fingerprint] = _Method(session, fast, Reader(session))
        return self._sessions[method.fingerprint]

    def _place(self, method: _Method) -> None:
        if self._session is method.session:
            return
        self.clear()
        self._placed.enter_context(attached_session(method.session))
        self._placed.enter_context(quickened(self.backbone, method.fast))
        self._placed.enter_context(self._tower.placed(self.model))
        self._session = method.session

    def clear(self) -> None:
        """Take everything off the model. Lanes go on later."""
        self._session = None
        self._beside.in_turn()
        self._placed.close()


def bytes_per_column(backbone: Backbone) -> int:
    """Of keys and values of one token in all layers."""
    config = backbone.text_config
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weight = next(backbone.decoder.parameters())
    return 2 * len(backbone.softmax_layers) * int(heads) * int(width) * weight.element_size()


def _powers(slots: int) -> tuple[int, ...]:
    """1, 2, 4, ... and `slots` itself."""
    return (*(1 << power for power in range((slots - 1).bit_length())), slots)


def _columns(least: int) -> int:
    columns = _COLUMNS
    while columns < least:
        columns *= 2
    return columns


def _image_room(tokens: int) -> int:
    return -(-max(tokens, 1) // _IMAGE) * _IMAGE


def _free(backbone: Backbone) -> int:
    """Bytes that lanes may take."""
    device = next(backbone.decoder.parameters()).device
    if device.type != "cuda":
        return 1 << 31
    return int(_SHARE * torch.cuda.mem_get_info(device)[0])
