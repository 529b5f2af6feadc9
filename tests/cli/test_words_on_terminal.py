"""Streaming of words: whole words, their colours, characters of several tokens."""

from __future__ import annotations

import io
import re

import pytest
import torch
from rich.console import Console
from rich.style import Style
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from seewhen.cli.streaming import WordStreamer

TEXT = "A naïve café cat 🐱, “twice”."


@pytest.fixture(autouse=True)
def fresh_styles() -> None:
    """rich keeps a style's codes as the first console of the process wrote them, which may have had 16 colours."""
    for cached in (Style.parse, Style._add):
        cached.cache_clear()


@pytest.fixture(scope="module")
def byte_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: every accent and emoji comes in pieces."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: i for i, letter in enumerate(["</s>", *alphabet])}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="</s>")


def _streamed(
    tokenizer: PreTrainedTokenizerFast, entropies: list[float], **console: object
) -> tuple[str, list[str]]:
    ids = tokenizer(TEXT)["input_ids"]
    file, rest = io.StringIO(), iter(entropies * len(ids))
    streamer = WordStreamer(Console(file=file, **console), tokenizer, [0], lambda: next(rest))  # type: ignore[arg-type]
    streamer.put(torch.tensor([[5, 6, 7]]))  # the prompt is not repeated
    seen = []
    for token in [*ids, 0]:
        streamer.put(torch.tensor([token]))
        seen.append(file.getvalue())
    streamer.end()
    return file.getvalue(), seen


def test_the_text_arrives_whole_and_in_order(byte_tokenizer: PreTrainedTokenizerFast) -> None:
    text, seen = _streamed(byte_tokenizer, [0.0], width=20)
    assert text == TEXT + "\n"
    assert all(TEXT.startswith(part) for part in seen)
    assert len(set(seen)) > 5, "it streams, it does not wait for the end"


def test_colour_only_where_there_is_doubt_and_only_on_a_terminal(byte_tokenizer: PreTrainedTokenizerFast) -> None:
    terminal = {"force_terminal": True, "color_system": "256", "no_color": False, "width": 200}
    assert "\x1b" not in _streamed(byte_tokenizer, [0.0], **terminal)[0]
    loud = _streamed(byte_tokenizer, [3.0], **terminal)[0]
    assert "\x1b[1;7;38;5;208mcat\x1b[0m" in loud
    assert re.sub(r"\x1b\[[\d;]*m", "", loud) == TEXT + "\n"
    assert "\x1b" not in _streamed(byte_tokenizer, [3.0], width=200)[0]


def test_no_color_is_honoured(byte_tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = _streamed(byte_tokenizer, [3.0], force_terminal=True, color_system="256", width=200)[0]
    assert "38;5" not in text and "\x1b[1;7mcat" in text  # bold and reversed are no colours


def test_lines_break_between_words(byte_tokenizer: PreTrainedTokenizerFast) -> None:
    text, _ = _streamed(byte_tokenizer, [0.0], width=12, force_terminal=True)
    lines = text.strip().split("\n")
    assert max(map(len, lines)) <= 12
    assert " ".join(lines) == TEXT
