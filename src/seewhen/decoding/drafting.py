"""Drafts: further texts of the prompts that are being answered, drawn aside from the bare model at temperature 1.

They begin on the prompt's own cached keys and values, all rows and all drafts in one batch, so neither the vision
tower nor the prompt is read again. Nothing of the running answers is known to them, and their random numbers are a
hash of torch's seed, the picture and the number of the draft: the answers' own draws are not disturbed, and a row
has the same drafts in any batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from seewhen.equations.drawing import hashed_gumbel, keys_at

_LOOK = 8  # steps between two looks at whether to go on: each look holds up the device
_MARKS = 8  # numbers a picture is known by


@dataclass(frozen=True)
class Draft:
    """One further text, and how sure each of its tokens was."""

    tokens: list[int]
    doubts: list[list[float]]  # log-probability and entropy of each token


class DraftPasses:
    """One token after the other on a cache of the drafts' own. Made by `Aside`."""

    def __init__(self, backbone: Any, cache: Any, seen: Tensor, positions: Tensor) -> None:
        self.backbone, self.cache, self.seen, self.positions = backbone, cache, seen, positions

    def logits(self, embeds: Tensor) -> Tensor:
        """What follows embeddings (drafts, 1, d): (drafts, vocabulary), float32."""
        self.seen = torch.cat([self.seen, self.seen.new_ones(len(embeds), 1)], dim=1)
        hidden = self.backbone.read(embeds, self.seen.long(), self.positions, self.cache)
        self.positions = self.positions + 1
        logits: Tensor = self.backbone.project(hidden[:, -1]).float()
        return logits

    def embedded(self, tokens: Tensor, dtype: torch.dtype) -> Tensor:
        """Embeddings (drafts, 1, d) of tokens (drafts,)."""
        embeds: Tensor = self.backbone.decoder.get_input_embeddings()(tokens[:, None]).to(dtype)
        return embeds


def drawn(
    passes: DraftPasses,
    last: Tensor,
    streams: Tensor,
    longest: int,
    ends: Collection[int],
    given_up: Callable[[], bool] = lambda: False,
) -> list[Draft]:
    """A draft for each row of `last` (drafts, 1, d), the prompts' last embeddings, and of `streams` (drafts,).

    Where nobody waits for the answers any more they end where they are.
    """
    stops = torch.tensor(sorted(ends), device=last.device)
    ended = torch.zeros(len(last), dtype=torch.bool, device=last.device)
    embeds, said, facts = last, list[Tensor](), list[Tensor]()
    for step in range(longest):
        logits = passes.logits(embeds)
        log_probs = torch.log_softmax(logits, dim=-1)
        noise = hashed_gumbel(keys_at(streams, torch.full_like(streams, step)), logits.shape[-1])
        tokens = (log_probs + noise).argmax(dim=-1)
        entropy = torch.special.entr(log_probs.exp()).sum(dim=-1)
        said.append(tokens)
        facts.append(torch.stack([log_probs.gather(1, tokens[:, None])[:, 0], entropy], dim=-1))
        ended |= torch.isin(tokens, stops)
        if step % _LOOK == _LOOK - 1 and (bool(ended.all()) or given_up()):
            break
        embeds = passes.embedded(tokens, last.dtype)
    all_tokens, all_facts = torch.stack(said, dim=1).tolist(), torch.stack(facts, dim=1).tolist()
    return [_until(tokens, doubts, ends) for tokens, doubts in zip(all_tokens, all_facts, strict=True)]


def _until(tokens: list[int], doubts: list[list[float]], ends: Collection[int]) -> Draft:
    """Without the token that ended it."""
    length = next((place for place, token in enumerate(tokens) if token in ends), len(tokens))
    return Draft(tokens[:length], doubts[:length])


def stream_of(marks: Sequence[float], number: int) -> int:
    """The random stream of a picture's draft."""
    known = ",".join(str(round(4 * mark)) for mark in marks)  # coarse: a batch rounds otherwise than a single row
    digest = hashlib.sha256(f"{torch.initial_seed()}/{known}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def marks_of(embeds: Tensor, image: Tensor) -> list[list[float]]:
    """A few numbers that each row's picture is known by; `embeds` is (rows, positions, d), `image` its mask."""
    weights = image.float() / image.sum(dim=1, keepdim=True).clamp(min=1)
    means = torch.einsum("rp,rpd->rd", weights, embeds.float())
    spread = means.std(dim=1, keepdim=True).clamp(min=1e-6)
    found: list[list[float]] = (means[:, :_MARKS] / spread).tolist()
    return found
