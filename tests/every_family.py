"""What the tests over all model families share: three settings of CAI, and a model seen from outside."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest

import seewhen
import tiny

NEVER = seewhen.method("cai", start_layer=0, threshold=1e9)
ALWAYS = seewhen.method("cai", preset="reference", start_layer=0, threshold=-1.0)
CONTRAST = ALWAYS.replace(contrast=3.0)

families = pytest.mark.parametrize("family", (*tiny.FAMILIES, tiny.CAPPED))


def spread(names: Iterable[str], first: Sequence[Any], second: Sequence[Any]) -> list[Any]:
    """(family, one of `first`, one of `second`): all of them on two families, plain and recurrent; every other one
    has each of `first` with one of `second`, by turns, so that no pair and no kind of model is left out."""
    cells = []
    for turn, family in enumerate(names):
        for place, one in enumerate(first):
            both = family in ("llava", "qwen3_5")
            cells += [(family, one, two) for two in (second if both else [second[(turn + place) % len(second)]])]
    return cells


def state_of(model: Any) -> dict[str, Any]:
    hooks = {}
    for name, module in model.named_modules():
        hooks[name] = (list(module._forward_hooks), list(module._forward_pre_hooks))
    kernels = {name: m.config._attn_implementation for name, m in model.named_modules() if hasattr(m, "config")}
    return {"hooks": hooks, "kernels": kernels, "own": set(model.__dict__), "generate": model.generate}
