"""Where the evidence for a word lies: the cosine of its own embedding with every image token.

The trace's `relevance` holds the weights a method used, one step behind the word and often saturated
(a sigmoid at scale 100). This is the raw similarity of the paper's Eq. similarity, for looking at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seewhen.backbones.backbone import Backbone, through
from seewhen.decoding.trace import Trace
from seewhen.equations.where import cosine

NAME = "similarity"


@contextmanager
def image_features(backbone: Backbone, input_ids: Tensor) -> Iterator[list[Tensor]]:
    """Keeps the image rows of the decoder's input embeddings of the next prefill: one tensor for each row.

    It sees the prompt before an attached method adds rows to it.
    """
    kept: list[Tensor] = []
    masks = backbone.image_mask(input_ids)

    def look(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        embeds = kwargs.get("inputs_embeds")
        if not kept and isinstance(embeds, Tensor) and embeds.shape[1] == masks.shape[1]:
            kept.extend(row[mask.to(row.device)].detach() for row, mask in zip(embeds, masks, strict=False))

    handle = backbone.decoder.register_forward_pre_hook(look, with_kwargs=True, prepend=True)
    try:
        yield kept
    finally:
        handle.remove()


@torch.inference_mode()
def evidence(backbone: Backbone, tokens: Tensor, features: Tensor) -> Tensor:
    """The cosine of each of `tokens` (steps,) with each of `features` (image tokens, d): (steps, image tokens)."""
    words = backbone.decoder.get_input_embeddings()
    states = through(words, tokens).to(features.device)
    valid = torch.ones(len(states), len(features), dtype=torch.bool, device=features.device)
    return cosine(states, features.expand(len(states), -1, -1), valid).cpu()


def with_similarity(trace: Trace, backbone: Backbone, features: Sequence[Tensor]) -> Trace:
    """A copy of a trace that also holds `similarity` (steps, rows, image tokens); NaN past a row's own tokens."""
    most = max((len(row) for row in features), default=0)
    similarity = torch.full((trace.tokens.shape[0], len(features), most), torch.nan)
    for row, own in enumerate(features):
        if len(own):
            similarity[:, row, : len(own)] = evidence(backbone, trace.tokens[:, row], own)
    return replace(trace, tensors={**trace.tensors, NAME: similarity})
