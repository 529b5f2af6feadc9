"""Model code and checkpoints that seewhen brings along."""

from __future__ import annotations


def register_models() -> None:
    """Make the ports known to transformers' Auto classes."""
    from seewhen.models.qwen_vl import register

    register()
