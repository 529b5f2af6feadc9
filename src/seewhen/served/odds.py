"""Log-odds of yes from the likeliest first tokens of an answer, and how far they can be from the truth.

A server tells its 20 (or 5) likeliest tokens. A token that is not among them is at most as likely as the last of
them, and all of those together have what is left of the probability: that bounds what yes and no can have more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from seewhen.served.replies import Likely

_FORMS = 4  # of each answer in a vocabulary: capital or not, after a space or not
_LEAST = 1e-12  # of a probability, so that odds are numbers


@dataclass(frozen=True)
class Odds:
    """Log-odds of yes; the truth lies between `low` and `high`."""

    value: float
    low: float
    high: float

    @property
    def range(self) -> tuple[float | None, float | None] | None:
        """The bound, where there is something to tell; an open end is None."""
        if self.high - self.low < 1e-3:
            return None
        low, high = (round(end, 4) if math.isfinite(end) else None for end in (self.low, self.high))
        return low, high


def odds_of(likeliest: Sequence[Likely]) -> Odds | None:
    """None where neither yes nor no is among the likeliest, so that nothing can be told."""
    chances = {word: _chances(likeliest, word) for word in ("yes", "no")}
    if not chances["yes"] and not chances["no"]:
        return None
    left = max(1.0 - sum(math.exp(each.log_prob) for each in likeliest), 0.0)
    least = math.exp(min(each.log_prob for each in likeliest))
    sure = {word: sum(found) for word, found in chances.items()}
    most = {word: sure[word] + min(left, max(_FORMS - len(found), 0) * least) for word, found in chances.items()}
    # An answer that is not among them at all gets the most it can have: the odds are then as even as they can be.
    yes, no = (sure[word] or max(most[word], _LEAST) for word in ("yes", "no"))
    return Odds(_ratio(yes, no), _ratio(sure["yes"], most["no"]), _ratio(most["yes"], sure["no"]))


def _chances(likeliest: Sequence[Likely], word: str) -> list[float]:
    forms = (word, word.capitalize())
    return [math.exp(each.log_prob) for each in likeliest if each.text.strip() in forms]


def _ratio(yes: float, no: float) -> float:
    if yes <= 0 or no <= 0:
        return math.inf if yes > 0 else -math.inf
    return math.log(yes) - math.log(no)
