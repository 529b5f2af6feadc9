"""Attention of new tokens that leaves keys and values where they are.

Where several query heads share a key head, transformers' call of SDPA copies all keys and values once per query
head, at every token: with hundreds of rows most of a GPU's time. The query heads of one key head can as well be
further queries of that head, which is the same sum.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward


def grouped(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """SDPA; prompts, and heads with keys of their own, as transformers does it."""
    rows, heads, queries, d = query.shape
    groups = heads // key.shape[1]
    if groups == 1 or (queries > 1 and attention_mask is None):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    mask = attention_mask if attention_mask is None else attention_mask.repeat(1, 1, groups, 1)
    output = scaled_dot_product_attention(
        query.reshape(rows, heads // groups, groups * queries, d), key, value, mask, scale=scaling
    )
    return output.reshape(rows, heads, queries, d).transpose(1, 2).contiguous(), None


def use_grouped() -> None:
    """For all models of this process."""
    AttentionInterface.register("sdpa", grouped)
