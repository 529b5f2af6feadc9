"""Asking a model whether an object is there: the question, the tokens that say yes and no, the odds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.verdicts.lexicon import Lexicon

if TYPE_CHECKING:
    from torch import Tensor

QUESTION = "Is there a {object} in the image?"
# As pieces of a vocabulary are written: plain, with a space (GPT), with SentencePiece's mark.
_SPACES = ("", "Ġ", "▁")
_SILENT_H = ("hour", "heir", "herb", "honor", "honest")
_SOUNDS_LIKE_YOU = re.compile(r"uni(?!m|n[^-])|use|usu|ute|euro|ewe|ukulele|one\b|once|u-|ufo")


@dataclass(frozen=True)
class YesNo:
    """The tokens that begin the answers yes and no."""

    yes: tuple[int, ...]
    no: tuple[int, ...]

    @staticmethod
    def of(tokenizer: Any) -> YesNo:
        """Found in the tokenizer's vocabulary; refused where an answer has no token of its own."""
        yes, no = (_whole_tokens(tokenizer, word) for word in ("yes", "no"))
        for word, found in (("yes", yes), ("no", no)):
            if not found:
                raise UnsupportedModel(
                    f"This model's tokenizer has no single token for {word!r}, so its answer has no odds.",
                    "Use a method that asks no questions, or a model whose tokenizer has whole words.",
                )
        return YesNo(yes, no)

    def log_odds(self, logits: Tensor) -> Tensor:
        """log p(yes) - log p(no) at the first token of the answer; `logits` is (..., vocabulary)."""
        yes, no = (logits[..., list(ids)].float().logsumexp(dim=-1) for ids in (self.yes, self.no))
        return yes - no


def _whole_tokens(tokenizer: Any, word: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for form in (word.capitalize(), word):
        for text in (form, f" {form}"):
            ids = tokenizer.encode(text, add_special_tokens=False)
            if len(ids) == 1:
                found[int(ids[0])] = None
        for space in _SPACES:
            index = tokenizer.convert_tokens_to_ids(space + form)
            if index is not None:
                found[int(index)] = None
    # An unknown word has a token too: what it is read back as decides.
    return tuple(index for index in found if tokenizer.decode([index]).strip().lower() == word)


def check_template(template: str) -> str:
    """A question must have one place for the object."""
    if template.count("{object}") != 1 or template.count("{") != 1 or len(template) > 500:
        raise InvalidMethod(
            f"The question {template[:60]!r} has no place for the object, or more than one.",
            f"Write {{object}} once, as in {QUESTION!r}.",
        )
    return template


def question(name: str, lexicon: Lexicon, template: str = QUESTION) -> str:
    """The question about an object: "a vase", "an apple", "Are there scissors", "Is there grass"."""
    if name.rpartition(" ")[2] in lexicon.plural:
        template = template.replace("Is there a {object}", "Are there {object}").replace("a {object}", "{object}")
    elif name in lexicon.mass:
        template = template.replace("a {object}", "{object}")
    elif takes_an(name):
        template = template.replace("a {object}", "an {object}")
    return template.replace("{object}", name)


def takes_an(name: str) -> bool:
    """Whether the word begins with the sound of a vowel."""
    return bool(name.startswith(_SILENT_H) or (name[:1] in "aeiou" and not _SOUNDS_LIKE_YOU.match(name)))
