"""Where sentences end, in a text that may still be growing.

The rule never takes back what it said: as text is added, sentences are only added. So a dot after a word ends
a sentence at once (the decoder need not wait for what follows), while a dot after a number or an abbreviation,
and a single line break, wait for what comes next.
"""

from __future__ import annotations

import re

# Never at the end of a sentence: a name or a number follows.
_TITLES = re.compile(r"mrs?|ms|dr|prof|st|mt|vs|approx|gen|col|sgt|capt|rev|[a-hj-z]")
# May end one: what follows decides.
_ABBREVIATIONS = re.compile(r"etc|inc|ltd|co|ca|cf|al|ft|oz|lbs?|sq|no|fig|jr|sr|(?:\w\.)+\w")

_END = re.compile(r"""(?P<stop>[.!?…]+|[。！？]+)['"”’»)\]]*|(?P<line>\n\s*)""")
_WORD_BEFORE = re.compile(r"[^\s\"'(\[]{0,24}$")
_STARTS_SENTENCE = re.compile(r"\s+['\"“‘(\[]*[A-Z]")
_LETTER = re.compile(r"[^\W\d_]")


def sentence_ends(text: str) -> list[int]:
    """The offset just after each complete sentence; space and line breaks that follow are not in it."""
    ends: list[int] = []
    letter = _LETTER.search(text)
    for match in _END.finditer(text):
        if letter is None:
            break
        if letter.end() <= match.end() and _ends(text, match):
            ends.append(match.start() if match["line"] else match.end())
            letter = _LETTER.search(text, match.end())
    return ends


def _ends(text: str, match: re.Match[str]) -> bool:
    return _line_ends(text, match) if match["line"] else _stop_ends(text, match)


def _stop_ends(text: str, match: re.Match[str]) -> bool:
    stop = match["stop"]
    if stop != ".":
        return True
    found = _WORD_BEFORE.search(text, max(0, match.start() - 24), match.start())
    before = found[0] if found else ""
    if before[-1:].isdigit():  # 3.5, "1. A dog" in a list; "in 2019. A dog"
        return not _opens_line(text, match.start() - len(before)) and _space_follows(text, match)
    word = before.lower()
    if _TITLES.fullmatch(word):
        return False
    if _ABBREVIATIONS.fullmatch(word):
        return bool(_STARTS_SENTENCE.match(text, match.end()))
    return True


def _space_follows(text: str, match: re.Match[str]) -> bool:
    return text[match.end() : match.end() + 1].isspace()


def _opens_line(text: str, place: int) -> bool:
    near = text[max(0, place - 16) : place]  # bounded: a line may be long
    return (place <= 16 or "\n" in near) and not near.rpartition("\n")[2].strip(" \t-*#")


def _line_ends(text: str, match: re.Match[str]) -> bool:
    """A line break ends a sentence unless the text goes on in small letters; an empty line always does."""
    if match[0].count("\n") > 1:
        return True
    return match.end() < len(text) and not text[match.end()].islower()
