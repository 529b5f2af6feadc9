"""The key to a server: what it may look like, and how it is kept out of what is shown and stored."""

from __future__ import annotations

import html
import re
from urllib.parse import quote

from seewhen.errors import InvalidInput

HIDDEN = "[key]"
_PART = 8  # so many characters of a key's beginning give it away
_SECRET = 16  # a shorter one ("EMPTY", "token-abc") may be a word of an answer
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_ESCAPED = re.compile(r"\\u00([0-9a-fA-F]{2})")


def checked_name(name: str) -> str:
    """The name of the variable that holds a key. What is none may be the key itself, and is not quoted."""
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            "What is named for the key is no environment variable.",
            "Give the variable's name, not the key: OPENAI_API_KEY.",
        )
    return name


def checked_key(key: str, source: str) -> str:
    """The key without spaces around it; `source` says where it was found. It is quoted in no error."""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise InvalidInput(
            f"The key in {source} has a character that no key has, such as a line break or an accent.",
            "Set it again: one line of plain characters.",
        )
    return key


def hidden(text: str, key: str) -> str:
    """A stranger's words without the key, however it is spelled there, or its beginning where it is cut off."""
    if not key:
        return text
    text = _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)
    parts = [key[:length] for length in range(len(key) - 1, _PART - 1, -1)]
    return _any_of([*_spellings(key), *parts]).sub(HIDDEN, text)


def hidden_in_answer(body: bytes, key: str) -> bytes:
    """An answer without the key, which goes into files."""
    if len(key) < _SECRET:
        return body
    for spelled in _spellings(key):
        body = body.replace(spelled.encode(), HIDDEN.encode())
    return body


def _spellings(key: str) -> list[str]:
    """As in text, in JSON, in an address and in a page."""
    found = (key, key.replace("\\", "\\\\").replace("/", "\\/").replace('"', '\\"'), quote(key, safe=""))
    return list(dict.fromkeys((*found, html.escape(key))))


def _any_of(texts: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)), re.IGNORECASE)
