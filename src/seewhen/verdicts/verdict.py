"""A verdict: how probable it is that an object which a text names is there.

A logistic function of what the model shows: its odds when asked, and, for text it wrote itself, the word's
log-probability and the entropy where the word begins, its position, the number of the attempt, and how many
drafts name it; with an offset for words that had enough examples. Without a fit the verdict is asking alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seewhen.atomic import write
from seewhen.errors import InvalidInput
from seewhen.reading import read_json

Array = NDArray[np.float64]

WRITTEN = ("odds", "logprob", "entropy", "position", "attempt", "elsewhere")
ASKED = ("odds",)

_MOST_BYTES = 4 << 20
_FORMAT = "seewhen verdict 1"
_MAKE_ONE = "Make one with `seewhen calibrate confirm`."
_LARGEST = 1e100  # of a number in a file: products and sums of these are numbers too


@dataclass(frozen=True)
class Signals:
    """What is known about one mention. Text by somebody else has odds and nothing more."""

    odds: float  # log-odds of yes when asked
    logprob: float | None = None  # of the token where the word begins
    entropy: float | None = None  # of the distribution it was drawn from
    position: float | None = None  # of that token in the answer
    attempt: float | None = None  # 0 for the first try at the sentence
    elsewhere: float | None = None  # the share of drafts, further texts of the same prompt, that name it

    def values(self, names: Sequence[str]) -> list[float] | None:
        """The values of these signals, or None where one is missing."""
        found = [getattr(self, name) for name in names]
        return None if None in found else [float(value) for value in found]


@dataclass(frozen=True)
class Logistic:
    """Log-odds of being there: an intercept, a weight for each signal, an offset for some words."""

    intercept: float
    weights: Mapping[str, float]
    offsets: Mapping[str, float] = field(default_factory=dict)

    def log_odds(self, values: Sequence[float], word: str) -> float:
        known = sum(weight * value for weight, value in zip(self.weights.values(), values, strict=True))
        return self.intercept + self.offsets.get(word, 0.0) + known


ASKING_ALONE = Logistic(0.0, {"odds": 1.0})


@dataclass(frozen=True)
class Verdict:
    """What judges a mention: one function for text the model wrote, one for text it is only asked about."""

    written: Logistic = ASKING_ALONE
    asked: Logistic = ASKING_ALONE
    threshold: float = 0.5  # probability from which an object is confirmed
    asked_threshold: float = 0.5  # the same for text that the model is only asked about
    about: Mapping[str, Any] = field(default_factory=dict)  # what it was fitted on, for the reader of the file

    def log_odds(self, signals: Signals, word: str) -> float:
        """Log-odds that `word` is there."""
        values = self._values(signals)
        return self.asked.log_odds([signals.odds], word) if values is None else self.written.log_odds(values, word)

    def _values(self, signals: Signals) -> list[float] | None:
        """What the first function judges by; None for text by somebody else, of which only odds are known."""
        return None if signals == Signals(signals.odds) else signals.values(tuple(self.written.weights))

    def probability(self, signals: Signals, word: str) -> float:
        """Probability that `word` is there."""
        return sigmoid(self.log_odds(signals, word))

    @property
    def wants_drafts(self) -> bool:
        """Whether it was fitted with drafts and cannot do without."""
        return "elsewhere" in self.written.weights

    # --- files ---

    def save(self, path: Path) -> None:
        """As JSON that `load` reads."""
        content = {
            "format": _FORMAT,
            "threshold": self.threshold,
            "asked_threshold": self.asked_threshold,
            "written": _as_json(self.written),
            "asked": _as_json(self.asked),
            "about": dict(self.about),
        }
        write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")

    @staticmethod
    def load(path: Path) -> Verdict:
        """A file that `save` wrote; anything else is refused."""
        content = read_json(path, _MAKE_ONE, _MOST_BYTES)
        try:
            return verdict_from(content)
        except ValueError as error:
            raise InvalidInput(f"{path} is not a verdict: {error}.", _MAKE_ONE) from None


def sigmoid(log_odds: float) -> float:
    """Probability from log-odds, without overflow."""
    if log_odds >= 0:
        return 1 / (1 + math.exp(-log_odds))
    small = math.exp(max(log_odds, -745.0))
    return small / (1 + small)


def log_odds_of(probability: float) -> float:
    """The inverse of `sigmoid`."""
    if probability in (0.0, 1.0):
        return math.inf if probability else -math.inf
    return math.log(probability) - math.log1p(-probability)


def _as_json(logistic: Logistic) -> dict[str, Any]:
    return {
        "intercept": logistic.intercept,
        "weights": dict(logistic.weights),
        "offsets": dict(sorted(logistic.offsets.items())),
    }


def verdict_from(content: Any) -> Verdict:
    """A verdict from parsed JSON; ValueError says what is wrong with it."""
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ValueError(f"there is no format {_FORMAT!r} in it")
    threshold = _probability(content.get("threshold"), "threshold")
    asked_threshold = _probability(content.get("asked_threshold", 0.5), "asked_threshold")
    about = content.get("about", {})
    if not isinstance(about, dict):
        raise ValueError("'about' is no table")
    written, asked = (
        _logistic(content.get(name), name, allowed) for name, allowed in (("written", WRITTEN), ("asked", ASKED))
    )
    return Verdict(written, asked, threshold, asked_threshold, about)


def _logistic(content: Any, name: str, allowed: tuple[str, ...]) -> Logistic:
    if not isinstance(content, dict):
        raise ValueError(f"{name!r} is missing")
    weights, offsets = (_numbers(content.get(part, {}), f"{name} {part}") for part in ("weights", "offsets"))
    if "odds" not in weights or not weights.keys() <= set(allowed):
        raise ValueError(f"the weights of {name!r} are for {sorted(weights)}, not some of {list(allowed)}")
    return Logistic(_number(content.get("intercept"), "intercept"), weights, offsets)


def _numbers(content: Any, name: str) -> dict[str, float]:
    if not isinstance(content, dict):
        raise ValueError(f"{name!r} is no table")
    return {key: _number(value, f"{name} {key}") for key, value in content.items()}


def _probability(value: Any, name: str) -> float:
    if not 0 <= _number(value, name) <= 1:
        raise ValueError(f"the {name} is no probability")
    return float(value)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ValueError(f"{name[:60]!r} is no number")
    return float(value)
