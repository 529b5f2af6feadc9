"""The prompt up to the question, computed once per image and shared by its questions.

Most of a yes/no benchmark's work is reading the image's tokens, and all questions about an image begin
with the same tokens. Causal attention makes their keys and values independent of the question, so one
row per image is enough: the rows are laid out as prefix, padding, question, and when the decoder is
about to read the prompt, each distinct prefix is computed once, copied into the cache of all rows that
begin with it, and cut from what is left to read. Rows that a method adds (a text-only copy) are served
alike. The attached method itself sees the whole prompt as always.

One prompt that several methods are asked in turn is read once too: who asks keeps what was read (`Kept`), and the
next method begins with the prompt's last token.

Only where that is exact: full causal attention in all layers, and methods that change nothing but the
newest token's row. Layers in which a method looks at the image's hidden states are shown the whole
prompt for the moment of that look.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from seewhen.backbones.backbone import Backbone
from seewhen.decoding.stepping import Course

_WORTH = 16  # tokens; a shorter prefix is not worth a pass of its own
# Others, such as token types, mark prompts that are read both ways.
_PLAIN = {"input_ids", "attention_mask", "pixel_values", "image_sizes", "mm_encoder_outputs"}


def can_share(backbone: Backbone) -> bool:
    """Whether every layer of the decoder reads causally and in full, with one position per token."""
    text = backbone.text_config
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    rope = getattr(text, "rope_parameters", None) or {}
    return (
        backbone.driver is backbone.model
        and len(backbone.softmax_layers) == backbone.num_layers
        and kinds == {"full_attention"}
        and "mrope_section" not in rope
        and not getattr(text, "sliding_window", None)
        and not getattr(text, "use_bidirectional_attention", None)
    )


def lay_out(
    backbone: Backbone, inputs: dict[str, Any], images: Sequence[str], pad: int
) -> tuple[dict[str, Any], int] | None:
    """The inputs with the padding moved behind the common prefix, and how many columns follow the prefix.

    None where there is nothing to share.
    """
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    if len(set(images)) == len(images) or set(inputs) - _PLAIN:
        return None
    rows = [row[seen.bool()] for row, seen in zip(ids, mask, strict=True)]
    length = _common(rows)
    after_image = max(int(backbone.image_mask(row[None])[0].nonzero().max()) + 1 for row in rows)
    if length < max(after_image, _WORTH):
        return None
    longest = max(len(row) for row in rows)
    new_ids = ids.new_full((len(rows), longest), pad)
    new_mask = mask.new_zeros(len(rows), longest)
    for r, row in enumerate(rows):
        start = longest - (len(row) - length)
        new_ids[r, :length], new_ids[r, start:] = row[:length], row[length:]
        new_mask[r, :length], new_mask[r, start:] = 1, 1
    return {**inputs, "input_ids": new_ids, "attention_mask": new_mask}, longest - length


def kept_length(backbone: Backbone, inputs: dict[str, Any]) -> int | None:
    """How many columns of a prompt are each method's own where the rest of it is kept; None where it is not."""
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    plain = not set(inputs) - _PLAIN and len(ids) == 1 and bool(mask.all())
    return 1 if plain and ids.shape[1] > _WORTH and not bool(backbone.image_mask(ids)[0, -1]) else None


def _common(rows: Sequence[Tensor]) -> int:
    """How many tokens all rows begin with; at least one token of each is left over."""
    length = min(len(row) for row in rows) - 1
    for row in rows[1:]:
        different = (row[:length] != rows[0][:length]).nonzero()
        length = int(different[0]) if len(different) else length
    return length


def _distinct(tensors: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Rows that differ from all before them, and for every row the place of its like among those."""
    kept: list[int] = []
    place: list[int] = []
    for row in range(len(tensors[0])):
        like = (k for k, other in enumerate(kept) if all(torch.equal(t[row], t[other]) for t in tensors))
        place.append(next(like, len(kept)))
        if place[-1] == len(kept):
            kept.append(row)
    return kept, place


class _Reading(threading.local):
    """The prompt that a thread is about to read, or reads. Threads may share one attached model."""

    def __init__(self) -> None:
        self.rest: int | None = None
        self.prefix: dict[int, Tensor] = {}  # hidden states of the prefix before each layer of `looks`
        self.index: Tensor | None = None  # row -> row of the prefix, while the rest of a prompt is read
        self.length = 0


@dataclass
class KeptPrefix:
    """The prefix that was read last: what it was made of, its keys and values, states that were looked at; and the
    picture that was."""

    given: tuple[Tensor, ...] = ()  # embeddings, mask, positions
    cache: Any = None
    looks: dict[int, Tensor] = field(default_factory=dict)
    course: Course | None = None  # what plain decoding made of the prompt
    seen: dict[str, Any] = field(default_factory=dict)  # the picture's features, see `features.looked_once`

    def holds(self, given: tuple[Tensor, ...], looks: frozenset[int]) -> bool:
        """Whether it is this prefix, bit for bit, with the states of these layers."""
        same = len(self.given) == len(given) and all(map(torch.equal, self.given, given))
        return same and looks <= self.looks.keys()


class PrefixHook:
    """Stands before the decoder; acts once while a prompt is `expected`.

    Made after the method's hooks are in place. `looks` are the layers in which the method reads hidden
    states of the whole prompt; `kept` is for the methods that are asked the same afterwards.
    """

    def __init__(self, backbone: Backbone, looks: Iterable[int] = (), kept: KeptPrefix | None = None) -> None:
        self._backbone, self._decoder = backbone, backbone.decoder
        self._looks, self.kept = frozenset(looks), kept
        self._reading = _Reading()
        register = self._decoder.register_forward_pre_hook
        self._handles = [register(self._before, with_kwargs=True)]
        self._handles.append(self._decoder.register_forward_hook(self._after, always_call=True))
        for number in sorted(self._looks):
            layer = backbone.layers[number]
            self._handles.append(layer.register_forward_pre_hook(self._shower(number), prepend=True))
            self._handles.append(layer.register_forward_pre_hook(self._hide))

    @contextmanager
    def expected(self, rest: int) -> Iterator[None]:
        """The last `rest` columns of the prompt that this thread reads next are not shared."""
        self._reading.rest = rest
        try:
            yield
        finally:
            self._reading.rest = None

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(
        self, module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]] | None:
        now = self._reading
        rest, now.rest = now.rest, None
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        if rest is None or not isinstance(positions, Tensor):
            return None
        if mask is None:  # transformers leaves out a mask that hides nothing
            mask = torch.ones(kwargs["inputs_embeds"].shape[:2], dtype=torch.long, device=positions.device)
        if not (isinstance(mask, Tensor) and mask.dim() == 2):
            return None
        embeds, cache = kwargs["inputs_embeds"], kwargs["past_key_values"]
        length = embeds.shape[1] - rest
        positions = positions.expand(embeds.shape[0], -1)
        given = [each[:, :length] for each in (embeds, mask, positions)]
        kept, place = _distinct(given)
        prefix = self._read((given[0][kept], given[1][kept], given[2][kept]))
        index = torch.tensor(place, device=embeds.device)
        for number, layer in enumerate(prefix.layers):
            cache.update(layer.keys[index], layer.values[index], number)
        now.index, now.length = index, length
        left = {
            **kwargs,
            "attention_mask": mask,
            "inputs_embeds": embeds[:, length:],
            "position_ids": positions[:, length:],
        }
        if isinstance(kwargs.get("cache_position"), Tensor):
            left["cache_position"] = kwargs["cache_position"][length:]
        return args, left

    def _read(self, given: tuple[Tensor, Tensor, Tensor]) -> Any:
        """The prefix's keys and values: no method has anything to do with it."""
        now = self._reading
        if self.kept is not None and self.kept.holds(given, self._looks):
            now.prefix = dict(self.kept.looks)
            return self.kept.cache
        prefix = DynamicCache(config=self._decoder.config)
        now.prefix = {}
        self._backbone.read(*given, prefix)
        if self.kept is not None:
            self.kept.given, self.kept.cache, self.kept.looks = given, prefix, dict(now.prefix)
        return prefix

    def _after(self, module: nn.Module, args: tuple, output: Any) -> None:
        self._reading.index, self._reading.prefix = None, {}

    def _shower(self, number: int) -> Any:
        def show(module: nn.Module, args: tuple) -> tuple | None:
            now = self._reading
            if now.index is None:
                now.prefix[number] = args[0]  # the prefix itself, or a later token: overwritten or dropped
                return None
            return (torch.cat([now.prefix[number][now.index], args[0]], dim=1), *args[1:])

        return show

    def _hide(self, module: nn.Module, args: tuple) -> tuple | None:
        now = self._reading
        return None if now.index is None else (args[0][:, now.length :], *args[1:])
