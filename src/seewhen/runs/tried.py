"""What came of `seewhen try`: what was said, denied and doubted, and each method held against regular decoding."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from seewhen.benchmarks.base import Metric
from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.sums import percent
from seewhen.runs import stats
from seewhen.runs.folders import Photo
from seewhen.runs.report import Comparison
from seewhen.runs.scoring import comparable, metrics_of, score_records
from seewhen.runs.served import total
from seewhen.runs.stats import Array, Difference, Interval, Key, Tally
from seewhen.runs.store import Record
from seewhen.runs.trying import REGULAR, Tries
from seewhen.verdicts.lexicon import Lexicon, lexicon_named
from seewhen.verdicts.reader import Mention, read_mentions

FEWEST = 5  # pictures from which an interval says something
DENIED = Metric("denied", "share of named objects that the model denies", -1)
JUDGED = ("chair_i", "chair_s", "recall")  # where labels are given
# Words that make no difference.
SMALL = frozenset(
    re.findall(r"\w+", "a an the this that these those it its there is are was were be of and or with to in on")
)


@dataclass(frozen=True)
class AskedObject:
    """What the model says of an object when asked, and how sure it was where regular decoding said it."""

    object: str
    verdict: str  # confirmed, denied, or why it was not asked
    odds: float | None = None
    probability: float | None = None
    logprob: float | None = None
    entropy: float | None = None
    low: float | None = None  # bounds of the odds, where a server tells few of its likeliest tokens
    high: float | None = None

    @property
    def doubt(self) -> float:
        """1 - exp(-H): 0.5 is a toss-up between two words, 0.9 between ten. 0 where it was not said."""
        return 1 - math.exp(-max(self.entropy or 0.0, 0.0))


@dataclass(frozen=True)
class Said:
    """What one method said of one picture."""

    method: str
    record: Record
    mentions: tuple[Mention, ...]

    @cached_property
    def objects(self) -> frozenset[str]:
        """All objects it names."""
        return frozenset(mention.object for mention in self.mentions)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Its words without those that matter little: articles and the like."""
        return tuple(word for word in re.findall(r"[\w'-]+", self.record.answer.lower()) if word not in SMALL)


@dataclass(frozen=True)
class Seen:
    """One picture: what every method said of it, regular decoding first, and what the model says when asked."""

    photo: Photo
    said: tuple[Said, ...]
    asked: Mapping[str, AskedObject]
    truth: frozenset[str] | None

    @property
    def regular(self) -> Said:
        return self.said[0]

    @cached_property
    def denied(self) -> tuple[str, ...]:
        """Objects that some method names and the model denies."""
        return tuple(name for name, each in self.asked.items() if each.verdict == "denied")

    @cached_property
    def split(self) -> tuple[str, ...]:
        """Objects that some methods name and others do not."""
        named = [said.objects for said in self.said]
        return tuple(sorted(frozenset.union(*named) - frozenset.intersection(*named)))

    @cached_property
    def doubted(self) -> tuple[AskedObject, ...]:
        """The objects of the regular answer, those said with most doubt first."""
        own = (each for name, each in self.asked.items() if name in self.regular.objects)
        return tuple(sorted(own, key=lambda each: -each.doubt))

    @property
    def weight(self) -> float:
        """How telling the picture is: objects in dispute, then the greatest doubt."""
        disputed = {*self.denied, *self.split}
        return len(disputed) + max((each.doubt for each in self.doubted), default=0.0)


@dataclass(frozen=True)
class TriedCost:
    """As measured while it ran, on this machine, in these batches. A server's time is not ours to measure."""

    ms_per_token: float | None
    ratio: float | None  # to regular decoding
    questions: int
    taken_back: int  # sentences
    served: Mapping[str, int] | None = None  # requests and tokens, as a server counts


@dataclass(frozen=True)
class Tried:
    """A method on all pictures that it and regular decoding answered."""

    label: str
    counts: Mapping[str, int]
    shares: Mapping[str, Interval]  # changed, gone, denied: percent; empty with few pictures
    denied: Comparison | None  # against regular
    scores: Mapping[str, Interval]  # of JUDGED, where labels are given
    against: Mapping[str, Comparison]
    cost: TriedCost
    asks: bool  # it asks while it decodes, so that it names little that is denied


@dataclass(frozen=True)
class Outcome:
    """All of it. `labelled`: how many pictures have labels; `unjudged`: labels the reader has no word for."""

    tries: Tries
    pictures: tuple[Seen, ...]  # the most telling first
    methods: tuple[Tried, ...]
    labelled: int
    unjudged: tuple[str, ...] = ()


def outcome(
    tries: Tries, labels: Mapping[str, frozenset[str]], reader: CaptionReader, unjudged: Sequence[str] = ()
) -> Outcome:
    """Reads all answers, weighs pictures, compares methods."""
    lexicon = lexicon_named(tries.trial.judging.lexicon)
    pictures = [_seen(tries, photo, lexicon, labels.get(photo.name)) for photo in tries.photos]
    tallies = {name: _tally(pictures, name) for name in tries.runs}
    denied = _denied(tallies) if tries.asking is not None else {}
    scores, against = _judged(tries, labels, reader) if labels else ({}, {})
    base = tries.runs[REGULAR].ms_per_token
    methods = []
    for name, tally in tallies.items():
        enough = len(tally.images) >= FEWEST
        counts = {str(key): int(array.sum()) for key, array in tally.counts.items()}
        methods.append(
            Tried(
                label=name,
                counts=counts,
                shares=stats.intervals(tally, _shares) if enough else {},
                denied=denied.get(name),
                scores=scores.get(name, {}),
                against=against.get(name, {}),
                cost=_cost(tries, name, base),
                asks=any("asked" in record.facts for record in tries.answers[name].values()),
            )
        )
    ranked = sorted(pictures, key=lambda seen: -seen.weight)
    return Outcome(tries, tuple(ranked), tuple(methods), len(labels), tuple(unjudged))


def _seen(tries: Tries, photo: Photo, lexicon: Lexicon, truth: frozenset[str] | None) -> Seen:
    records = {name: found[photo.name] for name, found in tries.answers.items()}
    said = tuple(
        Said(name, record, read_mentions(record.answer, lexicon))
        for name, record in records.items()
        if not record.error
    )
    asked = {name: _asked(name, record) for name, record in tries.asked.get(photo.name, {}).items()}
    return Seen(photo, said, asked, truth)


def _asked(name: str, record: Record) -> AskedObject:
    return AskedObject(name, record.error or record.answer, **record.facts)


def _tally(pictures: Sequence[Seen], method: str) -> Tally:
    """Counts of each picture that the method answered."""
    rows: dict[str, dict[str, int]] = {}
    for seen in pictures:
        said = next((each for each in seen.said if each.method == method), None)
        if said is None:
            continue
        gone = seen.regular.objects - said.objects
        rows[seen.photo.name] = {
            "pictures": 1,
            "changed": int(said.words != seen.regular.words),
            "named": len(said.objects),
            "denied": len(said.objects.intersection(seen.denied)),
            "regular": len(seen.regular.objects),
            "gone": len(gone),
            "gone_denied": len(gone.intersection(seen.denied)),
            "new": len(said.objects - seen.regular.objects),
        }
    names = next(iter(rows.values()))
    counts: dict[Key, Array] = {
        name: np.array([[row[name]] for row in rows.values()], dtype=np.float64) for name in names
    }
    return Tally(tuple(rows), counts)


def _shares(totals: Mapping[Any, Array]) -> dict[str, Array]:
    found = {
        "changed": percent(totals["changed"], totals["pictures"]),
        "gone": percent(totals["gone"], totals["regular"]),
        "denied": percent(totals["denied"], totals["named"]),
    }
    return {name: np.asarray(value) for name, value in found.items()}


def _denied(tallies: Mapping[str, Tally]) -> dict[str, Comparison]:
    """Each method's share of denied objects against regular decoding's, corrected for their number."""
    others = {name: tally for name, tally in tallies.items() if name != REGULAR and len(tally.images) >= FEWEST}
    tested = {name: stats.differences(tally, tallies[REGULAR], _shares) for name, tally in others.items()}
    return {name: found["denied"] for name, found in _corrected(tested, (DENIED,)).items()}


def _corrected(
    tested: Mapping[str, Mapping[str, Difference]], metrics: Sequence[Metric]
) -> dict[str, dict[str, Comparison]]:
    found: dict[str, dict[str, Comparison]] = {name: {} for name in tested}
    for metric in metrics:
        adjusted = stats.holm([differences[metric.name].p for differences in tested.values()])
        for (name, differences), p in zip(tested.items(), adjusted, strict=True):
            found[name][metric.name] = Comparison(REGULAR, metric, differences[metric.name], p, len(tested), 0)
    return found


def _judged(
    tries: Tries, labels: Mapping[str, frozenset[str]], reader: CaptionReader
) -> tuple[dict[str, dict[str, Interval]], dict[str, dict[str, Comparison]]]:
    """CHAIR's figures of the pictures with labels, and how they differ from regular decoding's."""
    ids = {photo.id: labels[photo.name] for photo in tries.photos if photo.name in labels}
    chair = Chair(ids, tuple(ids), reader)
    summary = metrics_of(Chair.summarise)
    scored = {
        name: score_records(chair, [r for r in found.values() if r.id in ids], tries.trial.seeds)
        for name, found in tries.answers.items()
    }
    scores = {}
    for name, each in scored.items():
        whole = stats.intervals(each.tally, summary)
        scores[name] = {metric: whole[metric] for metric in JUDGED}
    if len(ids) < FEWEST:
        return scores, {}
    tested = {}
    for name, each in scored.items():
        if name != REGULAR:
            a, b, _ = comparable(each, scored[REGULAR])
            tested[name] = stats.differences(a, b, summary)
    return scores, _corrected(tested, [Chair.metric(name) for name in JUDGED])


def _cost(tries: Tries, name: str, base: float | None) -> TriedCost:
    records = list(tries.answers[name].values())
    asked, back = (int(sum(each.facts.get(fact, 0) for each in records)) for fact in ("asked", "taken_back"))
    if tries.trial.ask.server is not None:
        return TriedCost(None, None, asked, back, total(records))
    ms = tries.runs[name].ms_per_token
    return TriedCost(ms, ms / base if ms and base else None, asked, back)
