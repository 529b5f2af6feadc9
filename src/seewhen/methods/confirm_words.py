"""What `confirm` needs of a tokenizer: text from tokens, questions as tokens, the tokens of words to forbid."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from weakref import WeakKeyDictionary

from seewhen.backbones.prompts import chat_prompt
from seewhen.verdicts.forbidden import Begun, Forbidden
from seewhen.verdicts.lexicon import Lexicon
from seewhen.verdicts.questions import YesNo, question
from seewhen.verdicts.reader import Mention, TokenSpans

_MOST_BARRED = 4096  # sets of tokens that are kept
# A piece without one of these ends no sentence.
_ENDS = frozenset(".!?…。！？\n\"'”’»)]")


@dataclass(frozen=True)
class Words:
    """One tokenizer with one lexicon; questions and forms are made once."""

    tokenizer: Any
    lexicon: Lexicon
    template: str
    answers: YesNo
    forbidden: Forbidden
    image_token_ids: tuple[int, ...] = ()
    _questions: dict[str, list[int]] = field(default_factory=dict)
    _ends: dict[int, bool] = field(default_factory=dict)
    # The same few for most tokens of an answer: all but the beginning of a forbidden word end alike.
    _barred: dict[tuple[frozenset[str], Begun], frozenset[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tokenizer: Any, lexicon: Lexicon, template: str) -> Self:
        """Refuses a tokenizer without tokens for yes and no."""
        read = lexicon.with_variants
        return cls(tokenizer, read, template, YesNo.of(tokenizer), Forbidden(lexicon))

    def on(self, image_token_ids: tuple[int, ...]) -> Words:
        """For a model with these image tokens."""
        return dataclasses.replace(self, image_token_ids=image_token_ids, _questions={})

    def text(self, tokens: Sequence[int]) -> str:
        """What tokens say, without special ones."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def lengths(self, tokens: Sequence[int], first: int) -> list[int]:
        """How many characters the first `first` tokens have, and each longer row of tokens up to all of them."""
        return [len(self.text(tokens[:count])) for count in range(first, len(tokens) + 1)]

    def places(self, tokens: Sequence[int], settled: int, mentions: Sequence[Mention]) -> tuple[int, ...]:
        """The token where each mention begins; all of them are said after the first `settled` tokens."""
        if not mentions:
            return ()
        spans = TokenSpans(tuple(self.lengths(tokens, settled)[1:]))
        return tuple(min(settled + spans.covering(m.start, m.end)[0], len(tokens) - 1) for m in mentions)

    def may_end(self, token: int) -> bool:
        """Whether a sentence can end with this token."""
        if token not in self._ends:
            self._ends[token] = not _ENDS.isdisjoint(self.tokenizer.decode([token]))
        return self._ends[token]

    def question(self, name: str) -> list[int]:
        """The tokens that follow the image when a model is asked about an object, in its own chat template."""
        if name not in self._questions:
            self._questions[name] = self._after_image(question(name, self.lexicon, self.template))
        return self._questions[name]

    def _after_image(self, text: str) -> list[int]:
        if getattr(self.tokenizer, "chat_template", None):
            text = chat_prompt(self.tokenizer, text, 1)
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        images = [place for place, token in enumerate(ids) if token in self.image_token_ids]
        return ids[images[-1] + 1 :] if images else ids

    def barred(self, denied: Collection[str], tokens: Sequence[int]) -> frozenset[int]:
        """Tokens that would say, or begin, a word of a denied object."""
        if not denied:
            return frozenset()
        names = frozenset(denied)
        key = names, self.forbidden.begun(names, self.text(tokens))
        if key not in self._barred:
            vocabulary, pieces = pieces_of(self.tokenizer), self.forbidden.following(*key)
            if len(self._barred) >= _MOST_BARRED:
                self._barred.clear()
            self._barred[key] = frozenset(token for piece in pieces for token in vocabulary.get(piece, ()))
        return self._barred[key]


_PIECES: WeakKeyDictionary[Any, dict[str, list[int]]] = WeakKeyDictionary()


def pieces_of(tokenizer: Any) -> dict[str, list[int]]:
    """What each token of a vocabulary adds to a text, in small letters."""
    if tokenizer not in _PIECES:
        # Alone, many tokenizers decode a word without the space before it.
        before = tokenizer("a", add_special_tokens=False)["input_ids"][-1:]
        length, found = len(tokenizer.decode(before)), dict[str, list[int]]()
        for token in range(len(tokenizer)):
            found.setdefault(tokenizer.decode([*before, token])[length:].lower(), []).append(token)
        _PIECES[tokenizer] = found
    return _PIECES[tokenizer]
