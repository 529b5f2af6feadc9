"""How published code asks MME's questions."""

from __future__ import annotations

from collections.abc import Mapping

from seewhen.benchmarks.prompts import PHRASE, Style

STYLES: Mapping[str, Style] = {
    "plain": Style(None, " Please answer yes or no.", 16),
    "llava": Style(None, PHRASE, 128),
}
