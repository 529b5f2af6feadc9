"""Questions aside as captured passes: run as it is, a pass of a few tokens waits for the host most of its time.

Forms are few: rows, columns and tokens are rounded up, so that a pass captured for one question serves the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache

from seewhen.decoding.kernels.capturing import captured_graph, turn

if TYPE_CHECKING:
    from seewhen.backbones.backbone import Backbone
    from seewhen.decoding.kept import Kept

_COLUMNS, _TOKENS = 128, 8


@dataclass
class QuestionPass:
    """One form of questions, at addresses that stay."""

    keys: list[Tensor]  # of each layer, (rows, heads, columns, d)
    values: list[Tensor]
    ids: Tensor  # (rows, tokens)
    mask: Tensor  # (rows, 1, tokens, columns + tokens), bool
    positions: Tensor  # ([axes,] rows, tokens)
    last: Tensor  # (rows,): the place of each question's last token
    logits: Tensor | None = None
    run: Callable[[], None] | None = None
    warm: bool = False


@dataclass(frozen=True)
class CapturedQuestions:
    """Questions of one moment: which rows ask, what they see, what they ask."""

    index: Tensor  # (questions,): the row of the running cache that each question follows
    seen: Tensor  # (questions, width), bool
    ids: Tensor  # (questions, tokens)
    starts: Tensor  # ([axes,] questions, 1)
    lengths: Tensor  # (questions,)

    def asked(self, backbone: Backbone, cache: Any, kept: Kept[QuestionPass]) -> Tensor:
        """Logits (questions, vocabulary)."""
        count, width = self.seen.shape
        rows = 1 << (count - 1).bit_length()
        columns = min(-(-width // _COLUMNS) * _COLUMNS, cache.layers[0].keys.shape[2])
        tokens = -(-self.ids.shape[1] // _TOKENS) * _TOKENS
        key = (rows, columns, tokens, *self.starts.shape[:-2])
        one = kept.take(key) or _made(cache, key, self.starts)
        self._fill(one, cache)
        with turn(self.ids.device):
            _run(one, backbone)
        assert one.logits is not None
        logits = one.logits[:count].clone()
        kept.put(key, one)
        return logits

    def _fill(self, one: QuestionPass, cache: Any) -> None:
        """Bring everything to the pass's addresses; rows beyond the questions repeat the first."""
        count, rows = len(self.ids), len(one.ids)
        index = torch.cat([self.index, self.index[:1].expand(rows - count)])
        columns, tokens = one.keys[0].shape[2], one.ids.shape[1]
        for layer, keys, values in zip(cache.layers, one.keys, one.values, strict=True):
            torch.index_select(layer.keys[:, :, :columns], 0, index, out=keys)
            torch.index_select(layer.values[:, :, :columns], 0, index, out=values)
        one.ids.zero_()
        one.ids[:count, : self.ids.shape[1]] = self.ids
        one.last[:count] = self.lengths - 1
        one.mask[..., columns:] = torch.ones(tokens, tokens, dtype=torch.bool, device=index.device).tril()
        one.mask[..., :columns] = False
        one.mask[:count, :, :, : self.seen.shape[1]] = self.seen[:, None, None]
        one.mask[count:] = one.mask[:1]
        one.positions[..., :count, :] = self.starts + torch.arange(tokens, device=index.device)
        one.positions[..., count:, :] = one.positions[..., :1, :]


def _made(cache: Any, key: tuple[int, ...], starts: Tensor) -> QuestionPass:
    rows, columns, tokens = key[:3]
    device = starts.device

    def like(tensor: Tensor) -> Tensor:
        return torch.empty(rows, tensor.shape[1], columns, tensor.shape[3], dtype=tensor.dtype, device=device)

    return QuestionPass(
        [like(layer.keys) for layer in cache.layers],
        [like(layer.values) for layer in cache.layers],
        torch.zeros(rows, tokens, dtype=torch.long, device=device),
        torch.zeros(rows, 1, tokens, columns + tokens, dtype=torch.bool, device=device),
        torch.zeros(*starts.shape[:-2], rows, tokens, dtype=torch.long, device=device),
        torch.zeros(rows, dtype=torch.long, device=device),
    )


def _run(one: QuestionPass, backbone: Backbone) -> None:
    """As it is the first time, which warms it up; captured the second time, replayed from then on."""
    if one.run is not None:
        one.run()
        return

    def run() -> None:
        one.logits = _logits(one, backbone)

    if one.warm and one.ids.is_cuda:
        one.run = captured_graph(run)[0]
        one.run()
    else:
        run()
    one.warm = True


def _logits(one: QuestionPass, backbone: Backbone) -> Tensor:
    decoder = backbone.decoder
    cache = DynamicCache(config=decoder.config)
    for layer, keys, values in zip(cache.layers, one.keys, one.values, strict=True):
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values  # appended to, never written: the next question finds them whole
    embeds = decoder.get_input_embeddings()(one.ids).to(one.keys[0].dtype)
    hidden = backbone.read(embeds, one.mask, one.positions, cache)
    rows = torch.arange(len(one.ids), device=one.ids.device)
    return backbone.project(hidden[rows, one.last]).float()
