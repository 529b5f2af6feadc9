"""A tokenizer of whole words for the tiny models: some name objects, one ends sentences, two answer questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import tiny

OBJECTS = ("cat", "dog", "car", "bus", "chair", "bottle", "person", "horse", "apple", "bowl", "clock", "bench")
OTHERS = ("is", "there", "a", "an", "in", "the", "image", "?", "with", "near", "and", "it", "on")


class WordyTokenizer:
    """Token ids from `tiny.FIRST_WORD` up are words; others decode to nothing."""

    chat_template = None
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, without: Sequence[str] = ()) -> None:
        spelled = [".", "Yes", "No", *OBJECTS, *OTHERS]
        self._spelled = {tiny.FIRST_WORD + n: word for n, word in enumerate(spelled) if word not in without}
        self._ids = {word.lower(): number for number, word in self._spelled.items()}
        self.words = [
            number for number, word in self._spelled.items() if word in (*OBJECTS, "with", "and", "near")
        ]
        self.stops = [self._ids["."]]

    def __len__(self) -> int:
        return max(self._spelled) + 1

    def decode(self, tokens: Any, skip_special_tokens: bool = False) -> str:
        words = [self._spelled.get(int(token), "") for token in tokens]
        return re.sub(r" (?=\.)", "", " ".join(word for word in words if word))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        words = re.findall(r"\w+|[.?]", text.lower())
        return [self._ids[word] for word in words if word in self._ids]

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._ids.get(token.lower())

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": self.encode(text)}
