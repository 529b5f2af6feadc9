"""Scores the captions: CHAIR with the controls, intervals over pictures, the ceiling; all as one JSON file.

python -m confirm.score RUNS --exam DIR --out results/scores.json
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from confirm.captions import PLACES, material
from seewhen.verdicts.ceiling import DOUBT, Pairs, ceiling
from seewhen.verdicts.lexicon import chair_lexicon
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.sentences import sentence_ends

REPLICATES, SEED, CUTS, DRAWN = 2000, 0, (2, 3, 4), 5
BESIDE = ("comes", "drafts4", "drafts2", "min-p+drafts4", "cai+drafts4")  # rows that are paired with every control
METRICS = ("chair_s", "chair_i", "chair_i_unique", "recall", "f1", "words", "asked", "steps", "taken_back")
Array = NDArray[np.float64]


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What a run wrote, its head first."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


@dataclass(frozen=True)
class Counts:
    """Counts of one caption, as a row of numbers."""

    row: tuple[float, ...]

    @staticmethod
    def of(text: str, shown: frozenset[str], told: dict[str, Any] | None) -> Counts:
        """What a caption says about a picture that shows these objects."""
        said = [mention.object for mention in read_mentions(text, chair_lexicon())]
        invented = [name for name in said if name not in shown]
        unique, true = set(said), set(said) & shown
        cost = told or {"asked": 0, "steps": 0, "tokens": 0, "taken_back": []}
        steps = cost["steps"] / cost["tokens"] if cost["tokens"] else 1.0
        words = len(re.findall(r"\w+", text))
        return Counts(
            (
                *(
                    bool(invented),
                    len(invented),
                    len(said),
                    len(unique - shown),
                    len(unique),
                    len(true),
                    len(shown),
                ),
                *(words, cost["asked"], steps, len(cost["taken_back"])),
            )
        )


def scores(counts: Array) -> Array:
    """The metrics of captions, in the order of `METRICS`; `counts` is (captions, numbers)."""
    return _metrics(counts.sum(axis=0), len(counts))


def _metrics(totals: Array, captions: int) -> Array:
    """Of sums (..., numbers) over that many captions."""
    sentence, invented, said, unique_wrong, unique, true, shown, *costs = np.moveaxis(totals, -1, 0)
    recall, precision = true / shown, true / np.maximum(unique, 1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    found = [sentence / captions, invented / np.maximum(said, 1), unique_wrong / np.maximum(unique, 1), recall, f1]
    percent = [100 * value for value in found]
    return np.stack([*percent, *(cost / captions for cost in costs)], axis=-1)


def summary(groups: Sequence[Array], base: Sequence[Array] | None) -> dict[str, Any]:
    """Means over seeds with intervals by drawing pictures again; differences to `base` drawn with them."""
    pictures = groups[0].shape[0]
    rng = np.random.default_rng(SEED)
    draws = rng.integers(0, pictures, (REPLICATES, pictures))
    times = np.stack([np.bincount(pick, minlength=pictures) for pick in draws]).astype(float)

    def both(sets: Sequence[Array]) -> tuple[Array, Array]:
        point = np.mean([scores(one) for one in sets], axis=0)
        drawn = np.mean([_metrics(times @ one, pictures) for one in sets], axis=0)
        return point, drawn

    point, drawn = both(groups)
    result: dict[str, Any] = {"seeds": len(groups), "pictures": pictures}
    for place, name in enumerate(METRICS):
        low, high = np.quantile(drawn[:, place], (0.025, 0.975))
        result[name] = {"value": _round(point[place]), "low": _round(low), "high": _round(high)}
    if base is not None:
        other, theirs = both(base)
        for place, name in enumerate(METRICS[:6]):
            low, high = np.quantile(drawn[:, place] - theirs[:, place], (0.025, 0.975))
            gap = point[place] - other[place]
            result[name]["difference"] = {"value": _round(gap), "low": _round(low), "high": _round(high)}
        place = METRICS.index("chair_i")
        low, high = np.quantile(drawn[:, place] / theirs[:, place] - 1, (0.025, 0.975))
        share = point[place] / other[place] - 1
        result["chair_i"]["share"] = {"value": _round(share), "low": _round(low), "high": _round(high)}
    return result


def _round(value: float) -> float:
    return round(float(value), 3)


def cut(text: str, sentences: int) -> str:
    """The first sentences of a caption."""
    ends = sentence_ends(text)
    return text if len(ends) <= sentences else text[: ends[sentences - 1]]


class Study:
    """All runs of one part."""

    def __init__(self, runs: Path, part: str, exam: Path) -> None:
        self.items = material(part, exam, None)
        self.runs: dict[tuple[str, str, int], list[tuple[int | None, list[dict[str, Any]]]]] = {}
        for path in sorted(runs.glob(f"{part}.*.n*.jsonl.gz")):
            head, *rest = lines(path)
            name = re.sub(r"\.(greedy|t[\d.]+-s\d+)$", "", head["run"].removeprefix(f"{part}.").rsplit(".", 1)[0])
            mode = "greedy" if head["seed"] is None else f"t{head['temperature']:g}"
            by_image = {line["image"]: line for line in rest}
            ordered = [by_image[item.name] for item in self.items]
            self.runs.setdefault((name, mode, head["tokens"]), []).append((head["seed"], ordered))

    def counts(self, captions: Sequence[dict[str, Any]], sentences: int | None = None) -> Array:
        """(pictures, numbers)"""
        rows = []
        for item, line in zip(self.items, captions, strict=True):
            text = line["text"] if sentences is None else cut(line["text"], sentences)
            rows.append(Counts.of(text, item.objects, line.get("told") if sentences is None else None).row)
        return np.array(rows, float)

    def table(self) -> list[dict[str, Any]]:
        """One row per method, mode and length, compared with regular decoding of the same seeds.

        Regular decoding at other temperatures, a control, is compared with that at temperature 1."""
        found = []
        for (name, mode, tokens), seeds in sorted(self.runs.items()):
            sampled, itself = self.runs.get(("regular", "t1", tokens), []), name == "regular"
            regular = dict(sampled if itself else self.runs.get(("regular", mode, tokens), sampled))
            shared = [(seed, captions) for seed, captions in seeds if seed in regular]
            base = None
            if not itself or mode not in ("greedy", "t1"):
                base = [self.counts(regular[seed]) for seed, _ in shared]
            groups = [self.counts(captions) for _, captions in (shared or seeds)]
            row = {"method": name, "mode": mode, "tokens": tokens, **summary(groups, base or None)}
            if name in BESIDE and tokens == 64:
                row["beside"] = self._beside(groups, [seed for seed, _ in shared or seeds], mode, name)
            found.append(row)
            if name == "regular":
                for sentences in CUTS:
                    shorter = [self.counts(captions, sentences) for _, captions in seeds]
                    row = {"method": f"regular, {sentences} sentences", "mode": mode, "tokens": tokens}
                    found.append({**row, **summary(shorter, groups)})
                if mode in ("greedy", "t1") and tokens == 64 and len(sampled) == DRAWN:
                    row = {"method": f"regular, the most typical of {DRAWN}", "mode": mode, "tokens": tokens}
                    found.append(
                        {**row, **summary([self.counts(self._most_typical(seeds[0][1], sampled))], groups)}
                    )
        return found

    def _most_typical(self, own: Sequence[dict[str, Any]], sampled: Sequence[Any]) -> list[dict[str, Any]]:
        """A control that spends what drafts spend: of a caption and four others of the picture, the one whose
        objects are most those of the others."""
        five = [own, *(captions for seed, captions in sampled if seed)]
        chosen = []
        for captions in zip(*five, strict=True):
            named = [{m.object for m in read_mentions(each["text"], chair_lexicon())} for each in captions]
            like = [sum(len(a & b) / max(len(a | b), 1) for b in named) for a in named]
            chosen.append({"text": captions[int(np.argmax(like))]["text"]})
        return chosen

    def _beside(
        self, groups: Sequence[Array], seeds: Sequence[int | None], mode: str, method: str
    ) -> dict[str, Any]:
        """Captions of these seeds less each control: regular ones cut off, cooler ones, greedy ones (whole and cut
        off), the most typical of five; variants of drafts also less four drafts alone."""
        regular = dict(self.runs["regular", mode, 64])
        controls = {f"cut after {k} sentences": [self.counts(regular[s], k) for s in seeds] for k in CUTS}
        for (name, cooler, tokens), captions in self.runs.items():
            if (name, tokens) == ("regular", 64) and cooler not in ("greedy", mode) and mode == "t1":
                known = dict(captions)
                controls[f"temperature {cooler[1:]}"] = [self.counts(known[s]) for s in seeds if s in known]
        if mode == "t1":
            ((_, greedy),) = self.runs["regular", "greedy", 64]
            controls["greedy"] = [self.counts(greedy)] * len(groups)
            for k in CUTS[1:]:
                controls[f"greedy, cut after {k} sentences"] = [self.counts(greedy, k)] * len(groups)
        sampled = self.runs.get(("regular", "t1", 64), [])
        if mode in ("greedy", "t1") and len(sampled) == DRAWN:  # drawn at 1, any of them may be first
            typical = self.counts(self._most_typical(self.runs["regular", mode, 64][0][1], sampled))
            controls[f"the most typical of {DRAWN}"] = [typical] * len(groups)
        if method in BESIDE[2:]:
            drafts = dict(self.runs.get(("drafts4", mode, 64), []))
            controls["4 drafts"] = [self.counts(drafts[s]) for s in seeds if s in drafts]
        found = {}
        for name, control in controls.items():
            if len(control) == len(groups):
                gaps = summary(groups, control)
                found[name] = {metric: gaps[metric]["difference"] for metric in ("chair_i", "recall", "f1")}
        return found

    def bounds(self, odds: Path, replicates: int = REPLICATES) -> dict[str, Any]:
        """The ceiling of regular captions, greedy and sampled, from the odds of all objects."""
        head, *rest = lines(odds)
        asked = {line["image"]: dict(zip(head["objects"], line["odds"], strict=True)) for line in rest}
        found = {}
        others = [captions for seed, captions in self.runs.get(("regular", "t1", 64), []) if seed]
        for mode in ("greedy", "t1"):
            seeds = self.runs.get(("mark", mode, 64), [])[:1]
            for _, captions in seeds:
                found[mode] = self._bound(captions, asked, others, replicates)
                alone = self._bound(captions, asked, (), replicates)  # without what other captions say
                found[mode]["alone"] = {name: alone[name] for name in ("invented_at_same_recall", "recoverable")}
        return found

    def _bound(
        self,
        captions: Sequence[dict[str, Any]],
        asked: dict[str, dict[str, float]],
        others: Sequence[Sequence[dict[str, Any]]],
        replicates: int,
    ) -> dict[str, Any]:
        rows: dict[str, list[Any]] = {name: [] for name in ("image", "true", "said", "odds", "elsewhere", *DOUBT)}
        for number, (item, line) in enumerate(zip(self.items, captions, strict=True)):
            if item.name not in asked:
                continue
            said: dict[str, dict[str, float]] = {}
            for mention in line["told"]["verdicts"]:
                said.setdefault(mention["object"], mention)
            drawn = [{m.object for m in read_mentions(o[number]["text"], chair_lexicon())} for o in others]
            for name, value in asked[item.name].items():
                rows["image"].append(number)
                rows["true"].append(name in item.objects)
                rows["said"].append(name in said)
                rows["odds"].append(value)
                rows["elsewhere"].append(np.mean([name in objects for objects in drawn]) if drawn else 0.0)
                for signal in DOUBT:
                    rows[signal].append(said[name][signal] if name in said else np.nan)
        return {"pictures": len(asked), **asdict(ceiling(Pairs.of(**rows), replicates=replicates))}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.score", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--exam", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    result: dict[str, Any] = {"command": "python -m confirm.score", "replicates": REPLICATES, "seed": SEED}
    for part in PLACES:
        study = Study(given.runs, part, given.exam)
        if study.runs:
            result[part] = {"pictures": len(study.items), "rows": study.table()}
        odds = given.runs / f"{part}.odds.jsonl.gz"
        if odds.exists() and study.runs:
            result[part]["ceiling"] = study.bounds(odds)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
