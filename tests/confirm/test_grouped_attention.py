"""The study's attention is transformers' own, without copies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from confirm.grouped_attention import grouped


@pytest.mark.parametrize(("queries", "masked"), [(1, False), (1, True), (5, True), (7, False)])
def test_it_is_what_transformers_computes(queries: int, masked: bool) -> None:
    torch.manual_seed(0)
    module: Any = SimpleNamespace(num_key_value_groups=3, is_causal=True)
    columns = 7 if queries == 7 else 12
    query, key, value = (torch.randn(2, heads, n, 8) for heads, n in ((6, queries), (2, columns), (2, columns)))
    mask = torch.rand(2, 1, queries, columns) > 0.3 if masked else None
    if mask is not None:
        mask[..., 0] = True  # a row that sees nothing has no answer
    ours, theirs = (f(module, query, key, value, mask, scaling=0.3)[0] for f in (grouped, sdpa_attention_forward))
    assert_close(ours, theirs)
