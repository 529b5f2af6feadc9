"""One answer of `confirm` while it is made: which sentences stay, what is taken back, when the answer ends.

Nothing here knows a model: the judge of a local model and the writer of a served one decide by it alike.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from seewhen.verdicts.lexicon import Lexicon
from seewhen.verdicts.reader import Mention, read_mentions
from seewhen.verdicts.sentences import sentence_ends
from seewhen.verdicts.verdict import Signals, sigmoid


class Rules(Protocol):
    """The parameters of `confirm` that decide."""

    @property
    def retries(self) -> int: ...

    @property
    def on_denied(self) -> str: ...


@dataclass(frozen=True)
class Asked:
    """An object that was asked about: what is known of it, and the verdict's log-odds."""

    signals: Signals
    log_odds: float
    more: Mapping[str, Any] = field(default_factory=dict)  # what a server leaves open, say

    def told(self) -> dict[str, Any]:
        """For the trace."""
        known = {name: value for name, value in vars(self.signals).items() if value is not None}
        probability = {"probability": round(sigmoid(self.log_odds), 4)}
        return {name: round(v, 4) for name, v in known.items()} | probability | dict(self.more)


@dataclass(frozen=True)
class Sentence:
    """A complete sentence that waits for its verdict."""

    text: str  # of the whole answer so far
    tokens: list[Any]  # likewise
    mentions: tuple[Mention, ...] = ()
    places: tuple[int, ...] = ()  # the token where each mention begins


@dataclass(frozen=True)
class Spare:
    """A sentence of a draft, which can be said instead of one that is taken back."""

    tokens: tuple[Any, ...]
    objects: frozenset[str]
    first: bool  # it begins a text


class Decision(NamedTuple):
    """What becomes of a sentence, and of the answer."""

    settle: bool
    again: bool  # it is taken back
    ended: bool


def complete(text: str, judged: int) -> bool:
    """Whether a sentence ends with the text's last word, after what is judged already.

    Where an end shows only with the next sentence's first token, the two are judged together.
    """
    ends = sentence_ends(text)
    return bool(ends) and ends[-1] > judged and ends[-1] >= len(text.rstrip())


@dataclass
class Answer:
    """What was asked, what is forbidden, what was taken back."""

    asks: bool = True  # it has an image to ask about
    asked: dict[str, Asked] = field(default_factory=dict)
    forbidden: set[str] = field(default_factory=set)  # objects
    settled: int = 0  # tokens
    judged: int = 0  # characters
    attempts: int = 0  # at the sentence that is being made
    blamed: set[str] = field(default_factory=set)  # objects it was taken back for
    tried: list[tuple[float, list[Any]]] = field(default_factory=list)  # each attempt: its lowest odds, its tokens
    forced: list[Any] = field(default_factory=list)  # is said word for word: an attempt, to keep it, or a spare
    final: bool = False  # the answer ends with what is forced
    spares: list[Spare] = field(default_factory=list)  # confirmed, the surest first
    refused: set[tuple[Any, ...]] = field(default_factory=set)  # spares that read otherwise in this answer
    said: set[str] = field(default_factory=set)  # objects that stay
    taken_back: list[dict[str, Any]] = field(default_factory=list)
    steps: int = 0

    def unasked(self, sentence: Sentence) -> dict[str, int]:
        """The sentence's objects that were not asked about, with the token where each is first said."""
        found: dict[str, int] = {}
        for mention, place in zip(sentence.mentions, sentence.places, strict=True):
            if self.asks and mention.object not in self.asked:
                found.setdefault(mention.object, place)
        return found

    def decide(self, sentence: Sentence, rules: Rules, threshold: float, last: bool) -> Decision:
        """Whether the sentence stays, is taken back, and whether the answer ends with it."""
        odds = {m.object: self.asked[m.object].log_odds for m in sentence.mentions if m.object in self.asked}
        denied = {name for name, value in odds.items() if value < threshold}
        if not denied or rules.on_denied == "mark" or self.final:
            ended = self.final
            self._settle(sentence)
            return Decision(True, False, ended)
        if self.forced:  # a spare: in its draft other words stood before it ("seat", after "toilet")
            self.refused.add(tuple(self.forced))
            self.forced = []
        self.tried.append((min(odds.values()), sentence.tokens[self.settled :]))
        spare = self._spare() if rules.on_denied == "again" and not last else None
        if spare is not None:
            self._take_back(sentence, denied)
            self.forbidden |= denied
            self.forced = list(spare.tokens)
            return Decision(False, True, False)
        more = rules.on_denied == "again" and self.attempts < rules.retries
        if more and not last and denied - self.blamed:
            self._take_back(sentence, denied)
            self.attempts += 1
            self.blamed |= denied
            self.forbidden |= denied
            return Decision(False, True, False)
        return self._give_up(sentence, denied, last)

    def denies(self, sentence: Sentence, threshold: float) -> bool:
        """Whether it names an object that was denied."""
        asked = (self.asked.get(mention.object) for mention in sentence.mentions)
        return not self.final and any(one is not None and one.log_odds < threshold for one in asked)

    def _spare(self) -> Spare | None:
        """The surest sentence that says something new, at its place: a first one begins an answer."""
        for spare in self.spares:
            new = not spare.objects <= self.said and spare.objects.isdisjoint(self.forbidden)
            if new and spare.first == (self.settled == 0) and spare.tokens not in self.refused:
                return spare
        return None

    def stuck(self, sentence: Sentence, last: bool) -> Decision:
        """Nothing is left to say but words of denied objects: the sentence cannot be made."""
        self.tried.append((-math.inf, sentence.tokens[self.settled :]))
        return self._give_up(sentence, self.blamed or self.forbidden, last)

    def _give_up(self, sentence: Sentence, denied: Collection[str], last: bool) -> Decision:
        """The answer ends before this sentence; if it is the first, the least denied attempt is kept."""
        if self.settled:
            self._take_back(sentence, denied)
            return Decision(False, True, True)
        best = max(self.tried, key=lambda attempt: attempt[0])[1]
        if last or best == sentence.tokens:
            self._settle(sentence)
            return Decision(True, False, True)
        self._take_back(sentence, denied)
        self.forced, self.final, self.forbidden = best, True, set()
        return Decision(False, True, False)

    def _settle(self, sentence: Sentence) -> None:
        self.settled, self.judged = len(sentence.tokens), len(sentence.text)
        self.attempts, self.blamed, self.tried, self.forced = 0, set(), [], []
        self.said |= {mention.object for mention in sentence.mentions}

    def _take_back(self, sentence: Sentence, denied: Iterable[str]) -> None:
        said = {"text": sentence.text[self.judged :].strip(), "after": self.judged}
        said["denied"] = [{"object": name, **self.asked[name].told()} for name in sorted(denied)]
        self.taken_back.append(said)

    def told(self, text: str, tokens: int, lexicon: Lexicon, threshold: float) -> dict[str, Any]:
        """Every mention with its verdict, what was taken back, what it cost."""
        lead = len(text) - len(text.lstrip())  # answers are shown without the space before them
        verdicts = []
        for mention in read_mentions(text, lexicon):
            asked = self.asked.get(mention.object)
            said = "not asked" if asked is None else "denied" if asked.log_odds < threshold else "confirmed"
            place = {"start": mention.start - lead, "end": mention.end - lead}
            known = {} if asked is None else asked.told()
            verdicts.append({"object": mention.object, "text": mention.text, **place, "verdict": said, **known})
        cost = {"asked": len(self.asked), "steps": self.steps, "tokens": tokens}
        back = [{**said, "after": max(said["after"] - lead, 0)} for said in self.taken_back]
        return {"verdicts": verdicts, "taken_back": back, **cost}


def fresh_mentions(text: str, lexicon: Lexicon, judged: int) -> tuple[Mention, ...]:
    """The objects that a text names after what is judged already."""
    return tuple(mention for mention in read_mentions(text, lexicon) if mention.start >= judged)
