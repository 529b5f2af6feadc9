"""Errors that name the cause and the way out.

Every error a user can meet derives from `SeewhenError`; the command line prints it as one line
(`message` then `hint`) and exits with code 2, the server turns it into a status code.
"""

from __future__ import annotations


class SeewhenError(Exception):
    """Base of all errors raised on purpose. `hint` says what to do about it."""

    exit_code = 2  # of the command line

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = _short(message), _short(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


def _short(text: str) -> str:
    """An error may quote a stranger's file: it stays one line, steers no terminal, and nobody reads thousands of
    characters."""
    text = text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return text if len(text) <= 1200 else f"{text[:1000]} ... {text[-190:]}"


class UnsupportedModel(SeewhenError):
    """The model lacks something the method needs (a decoder, image tokens, softmax attention...)."""


class UnsupportedMode(SeewhenError):
    """The method cannot run in this decoding mode or together with this option."""


class InvalidMethod(SeewhenError):
    """Unknown method, preset or parameter, or a parameter out of its range."""


class InvalidInput(SeewhenError):
    """Bad input: a missing file, a broken image, a malformed answers file."""


class MissingDependency(SeewhenError):
    """An optional dependency is needed for this feature."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"This needs the package {package!r}, which is not installed.",
            f"Install it with: pip install 'seewhen[{extra}]'",
        )
