"""Where the evidence for a word lies: the cosine of its own embedding with every image token.

The trace's `relevance` holds the weights a method used, one step behind the word and often saturated
(a sigmoid at scale 100). This is the raw similarity of the paper's Eq. similarity, for looking at.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seewhen.backbone import Backbone
from seewhen.trace import Trace
from seewhen.where import cosine

NAME = "similarity"


@contextmanager
def image_features(backbone: Backbone, input_ids: Tensor) -> Iterator[list[Tensor]]:
    """Keeps the image rows of the decoder's input embeddings of the next prefill (of its first row).

    Enter it before `attach`: it must see the prompt before contrast rows are added to it.
    """
    kept: list[Tensor] = []
    mask = backbone.image_mask(input_ids)[0]

    def look(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        embeds = kwargs.get("inputs_embeds")
        if not kept and isinstance(embeds, Tensor) and embeds.shape[1] == len(mask):
            kept.append(embeds[0, mask.to(embeds.device)].detach())

    handle = backbone.decoder.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield kept
    finally:
        handle.remove()


@torch.inference_mode()
def with_similarity(trace: Trace, backbone: Backbone, features: Tensor) -> Trace:
    """A copy of a one-row trace that also holds `similarity` (steps, 1, image tokens)."""
    words = backbone.decoder.get_input_embeddings()
    tokens = trace.tokens[:, 0].to(words.weight.device)
    states = words(tokens).to(features.device)
    valid = torch.ones(1, features.shape[0], dtype=torch.bool, device=features.device)
    similarity = cosine(states, features.expand(len(states), -1, -1), valid.expand(len(states), -1))
    return replace(trace, tensors={**trace.tensors, NAME: similarity.cpu()[:, None]})
