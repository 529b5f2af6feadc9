"""Words on the terminal: streamed as they come, coloured by risk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from seewhen.viewer.words import LEVELS, Word, group, level, risk, word_risk

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# From plain to loud. Underline and bold say it too, for terminals and eyes without these colours.
STYLES = ("", "yellow", "underline dark_orange", "bold reverse dark_orange")


def legend() -> Text:
    """What the colours mean."""
    from rich.text import Text

    text = Text("risk: ", style="dim")
    for number, name in enumerate(LEVELS):
        text.append(name, STYLES[number])
        text.append("  " if number + 1 < len(LEVELS) else "", "")
    return text


class WordStreamer:
    """A streamer for `generate` that prints whole words.

    `entropy` gives the newest token's entropy (None where it is not known). A word is printed when the next
    one begins, so that its colour counts all of its tokens.
    """

    def __init__(
        self, console: Console, tokenizer: Any, special: Collection[int], entropy: Callable[[], float | None]
    ) -> None:
        self._console, self._tokenizer, self._entropy = console, tokenizer, entropy
        self._special = frozenset(special)
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._risks: list[float | None] = []
        self._decoded = ""
        self._printed = 0  # words
        self._column = 0
        self._prompt = True

    def put(self, value: Any) -> None:
        """Called by `generate`: once with the prompt, then with each new token."""
        if self._prompt:
            self._prompt = False
            return
        token = int(value.flatten()[0])
        if token in self._special:
            return
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        # A character whose bytes are not all there yet decodes to a replacement sign: wait for the rest.
        known = "" if text.endswith("\ufffd") else text[len(self._decoded) :]
        self._decoded += known
        self._texts.append(known)
        self._risks.append(risk(self._entropy()))
        self._print(group(self._texts)[:-1])

    def end(self) -> None:
        """Called by `generate` after the last token."""
        self._print(group(self._texts))
        self._console.print()

    def _print(self, words: list[Word]) -> None:
        from rich.text import Text

        for word in words[self._printed :]:
            text = word.text.lstrip() if self._printed == 0 else word.text
            style = STYLES[level(word_risk(word, self._risks))]
            bare = text.lstrip()
            space = text[: len(text) - len(bare)]
            if self._console.is_terminal and self._column + len(text) > self._console.width and space == " ":
                space, self._column = "\n", 0
            self._column = 0 if "\n" in space else self._column
            self._column += len(bare) + (0 if "\n" in space else len(space))
            self._console.print(Text(space).append(bare, style), end="", soft_wrap=True)
            self._printed += 1
        self._console.file.flush()
