"""Words on the terminal: streamed as they come, coloured by risk."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from seewhen.showing.viewer.word_risk import LEVELS, Word, group, level, risk, word_risk

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

# From plain to loud. Underline and bold say it too, for terminals and eyes without these colours.
STYLES = ("", "yellow", "underline dark_orange", "bold reverse dark_orange")


def legend() -> Text:
    """What the colours mean."""
    from rich.text import Text

    text = Text().append("risk: ", "dim")
    for number, name in enumerate(LEVELS):
        text.append(name, STYLES[number])
        text.append("  " if number + 1 < len(LEVELS) else "", "")
    return text


class WordStreamer:
    """A streamer for `generate` that prints whole words.

    `entropy` gives the newest token's entropy (None where it is not known). A word is printed when the next
    one begins, so that its colour counts all of its tokens and lines break between words.
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
        chunks = self._chunks()
        self._print(chunks[:-1])

    def end(self) -> None:
        """Called by `generate` after the last token."""
        self._print(self._chunks())
        self._console.print()

    def _chunks(self) -> list[list[Word]]:
        """The words not yet printed, those without a space between them together: a line breaks at spaces."""
        chunks: list[list[Word]] = []
        for word in group(self._texts)[self._printed :]:
            if chunks and not word.text[:1].isspace():
                chunks[-1].append(word)
            else:
                chunks.append([word])
        return chunks

    def _print(self, chunks: list[list[Word]]) -> None:
        from rich.cells import cell_len
        from rich.text import Text

        for chunk in chunks:
            text = Text()
            for word in chunk:
                text.append(word.text, STYLES[level(word_risk(word, self._risks))])
            bare = text[len(text.plain) - len(text.plain.lstrip()) :]
            space = text.plain[: len(text) - len(bare)] if self._printed else ""
            width = cell_len(bare.plain)
            if self._console.is_terminal and space == " " and self._column + 1 + width > self._console.width:
                space = "\n"
            self._column = width + (0 if "\n" in space else self._column + len(space))
            self._console.print(Text(space).append_text(bare), end="", soft_wrap=True)
            self._printed += len(chunk)
        self._console.file.flush()
