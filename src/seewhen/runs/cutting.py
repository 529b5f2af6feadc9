"""CHAIR falls as captions get shorter, whatever makes them shorter: the control that only cuts them off.

Regular captions, cut off after k sentences, are scored beside the whole ones (`cuts.json`). A report then sets
each method with shorter captions beside the cut that has its recall: what is left is more than brevity.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seewhen.atomic import write
from seewhen.benchmarks.base import Benchmark
from seewhen.benchmarks.chair.caption_reader import sentences
from seewhen.errors import InvalidInput
from seewhen.reading import check_form, expecting, read_json
from seewhen.runs import file_forms, stats
from seewhen.runs.scoring import Scored, check_counts, comparable, counts_from, plain_counts, score_records
from seewhen.runs.stats import Metrics, Tally
from seewhen.runs.store import Record

FILE = "cuts.json"
MOST = 10  # sentences after which captions are cut
SHOWN = ("chair_s", "chair_i", "chair_i_unique", "recall", "words")


@dataclass(frozen=True)
class BesideCut:
    """A method's differences from regular captions cut off at about its recall; p-values Holm-corrected."""

    label: str
    sentences: int
    differences: Mapping[str, stats.Difference]


@dataclass(frozen=True)
class Control:
    """Regular captions cut off after so many sentences, and the methods that shorten captions beside them."""

    cuts: Mapping[int, Mapping[str, float]]
    methods: tuple[BesideCut, ...]


def cut(caption: str, count: int) -> str:
    """The first sentences of a caption."""
    return " ".join(sentences(caption)[:count])


def cut_tallies(benchmark: Benchmark, records: Sequence[Record], seeds: Sequence[int]) -> dict[int, Tally]:
    """Counts of the same captions cut off after 1, 2, ... sentences, as long as that shortens any of them."""
    longest = max((len(sentences(record.answer)) for record in records), default=0)
    found = {}
    for count in range(1, min(longest, MOST + 1)):
        shorter = [replace(record, answer=cut(record.answer, count)) for record in records]
        found[count] = score_records(benchmark, shorter, seeds).tally
    return found


def write_cuts(path: Path, benchmark: Benchmark, records: Sequence[Record], seeds: Sequence[int]) -> None:
    """Writes cuts.json beside the counts of a run whose answers are captions."""
    if benchmark.answers_are != "captions":
        return
    tallies = cut_tallies(benchmark, records, seeds)
    if tallies:
        images = next(iter(tallies.values())).images
        cuts = {str(count): plain_counts(tally) for count, tally in tallies.items()}
        plain = {"format": 1, "images": images, "cuts": cuts}
        write(path / FILE, json.dumps(plain, ensure_ascii=False, separators=(",", ":")) + "\n", durable=True)


def read_cuts(path: Path) -> dict[int, Tally]:
    """The inverse; nothing where a run has none."""
    if not (path / FILE).exists():
        return {}
    again = "Run its `seewhen eval` command again to score anew."
    plain = read_json(path / FILE)
    check_form(file_forms.Cuts, plain, path / FILE, again)
    images = tuple(plain["images"])
    with expecting(path / FILE, again):
        return {int(count): Tally(images, counts_from(counts)) for count, counts in plain["cuts"].items()}


def control(scored: Mapping[str, Scored], cuts: Mapping[int, Tally], metrics: Metrics) -> Control | None:
    """The control for the runs of one group by label; None without cut captions."""
    if not cuts or "regular" not in scored:
        return None
    regular = scored["regular"]
    as_runs = {f"{FILE}, {count} words": replace(regular, tally=tally) for count, tally in cuts.items()}
    check_counts({"regular": regular, **as_runs}, metrics, ())
    if any(set(regular.tally.images) - set(tally.images) for tally in cuts.values()):
        raise InvalidInput(f"{FILE} of regular lacks images of its counts.", "Score it anew with `seewhen eval`.")
    of_cuts = {count: _shown(tally, metrics) for count, tally in cuts.items()}
    whole = {label: _shown(one.tally, metrics) for label, one in scored.items()}
    if not all({"words", "recall"} <= found.keys() for found in whole.values()):
        return None
    shorter = [label for label in scored if whole[label]["words"] < whole["regular"]["words"]]
    found = []
    for label in shorter:
        count = min(of_cuts, key=lambda k: abs(of_cuts[k]["recall"] - whole[label]["recall"]))
        same = replace(scored["regular"], tally=cuts[count])
        a, b, _ = comparable(scored[label], same)
        differences = stats.differences(a, b, metrics)
        found.append(BesideCut(label, count, {name: differences[name] for name in whole[label]}))
    return Control(of_cuts, tuple(_corrected(found)))


def _shown(tally: Tally, metrics: Metrics) -> dict[str, float]:
    return {name: value for name, value in stats.estimate(tally, metrics).items() if name in SHOWN}


def _corrected(found: Sequence[BesideCut]) -> list[BesideCut]:
    """The same with p-values corrected metric by metric over the methods."""
    names = found[0].differences if found else ()
    adjusted = {name: stats.holm([one.differences[name].p for one in found]) for name in names}
    return [
        replace(one, differences={n: replace(d, p=adjusted[n][place]) for n, d in one.differences.items()})
        for place, one in enumerate(found)
    ]
