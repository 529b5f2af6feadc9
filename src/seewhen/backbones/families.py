"""The exceptions: model families for which the generic accessors of `backbone.py` are not enough.

Each entry is a function from a model to the `Backbone` fields it knows better. Third parties add
their own with `register_family("model_type", function)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Family = Callable[[nn.Module], dict[str, Any]]


def _blip(model: Any) -> dict[str, Any]:
    """(Instruct)BLIP-2: `generate` hands embeddings to an inner causal model and drives that one."""
    inner = model.language_model
    return {
        "driver": inner,
        "decoder": inner.get_decoder(),
        "head": inner.get_output_embeddings(),
        "text_config": inner.config,
    }


_FAMILIES: dict[str, Family] = {"instructblip": _blip, "blip-2": _blip}


def register_family(model_type: str, family: Family) -> None:
    """Teach seewhen the facts of a family whose generic accessors do not answer (see `Backbone`)."""
    _FAMILIES[model_type] = family


def exceptions_of(model: nn.Module) -> Family:
    """The entry for this model's `config.model_type`, or one that adds nothing."""
    config = getattr(model, "config", None)
    return _FAMILIES.get(getattr(config, "model_type", ""), lambda model: {})
