"""How published code asks AMBER's questions."""

from __future__ import annotations

from collections.abc import Mapping

from seewhen.benchmarks.prompts import YES_OR_NO, Style

STYLES: Mapping[str, Style] = {
    "plain": Style(None, max_new_tokens=512),
    "yes-no": Style(None, YES_OR_NO, 8),
}
