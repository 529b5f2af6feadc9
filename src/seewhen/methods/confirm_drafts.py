"""What `confirm` reads in drafts: how often they name each object, and sentences to say instead of denied ones.

Nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from seewhen.decoding.drafting import Draft
from seewhen.methods.confirm_answer import Asked, Spare, complete, fresh_mentions
from seewhen.methods.confirm_words import Words
from seewhen.verdicts.verdict import Signals


@dataclass(frozen=True)
class Place:
    """Where a draft first names an object: how sure it was, and at which token."""

    draft: int
    log_prob: float
    entropy: float
    position: int


@dataclass(frozen=True)
class Drafts:
    """The drafts of one answer, read."""

    count: int
    spares: Sequence[Spare]
    named: Mapping[str, Sequence[Place]]  # object -> one place for each draft that names it

    @staticmethod
    def read(drafts: Sequence[Draft], words: Words) -> Drafts:
        """Sentence by sentence, as an answer is read."""
        spares: list[Spare] = []
        named: dict[str, list[Place]] = {}
        for number, draft in enumerate(drafts):
            settled = judged = 0
            for length in range(1, len(draft.tokens) + 1):
                if not any(words.may_end(token) for token in draft.tokens[max(length - 2, 0) : length]):
                    continue
                text = words.text(draft.tokens[:length])
                if not complete(text, judged):
                    continue
                mentions = fresh_mentions(text, words.lexicon, judged)
                begins = words.places(draft.tokens[:length], settled, mentions)
                for mention, place in zip(mentions, begins, strict=True):
                    places = named.setdefault(mention.object, [])
                    if all(each.draft != number for each in places):
                        log_prob, entropy = draft.doubts[place]
                        places.append(Place(number, log_prob, entropy, place))
                if mentions:
                    objects = frozenset(mention.object for mention in mentions)
                    spares.append(Spare(tuple(draft.tokens[settled:length]), objects, first=settled == 0))
                settled, judged = length, len(text)
        return Drafts(len(drafts), tuple(spares), named)

    def elsewhere(self, name: str) -> float:
        """The share of the drafts that name an object of the answer."""
        return len(self.named.get(name, ())) / self.count

    def signals(self, name: str, odds: float) -> Signals:
        """Of an object that a draft names; elsewhere are then the other drafts."""
        place = self.named[name][0]
        others = (len(self.named[name]) - 1) / max(self.count - 1, 1)
        return Signals(odds, place.log_prob, place.entropy, float(place.position), 0.0, others)

    def unasked(self, asked: Collection[str]) -> list[str]:
        """Objects that were not asked about, of sentences that say something else than the answer did."""
        return [name for name in self.named if name not in asked]

    def confirmed(self, asked: Mapping[str, Asked], threshold: float) -> list[Spare]:
        """Sentences all of whose objects are confirmed, the surest first."""

        def lowest(spare: Spare) -> float:
            return min(asked[name].log_odds for name in spare.objects)

        known = [spare for spare in self.spares if spare.objects <= asked.keys()]
        return sorted((spare for spare in known if lowest(spare) >= threshold), key=lowest, reverse=True)
