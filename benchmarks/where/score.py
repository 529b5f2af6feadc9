"""Scores of what `where.study` wrote, by the hypotheses: `python -m where.score DIR scenes|photo --out FILE`."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seewhen.runs.stats import Difference, Tally, differences, holm, intervals
from seewhen.verdicts.ceiling import Draws
from seewhen.verdicts.lexicon import chair_lexicon
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.separation import auroc
from where.study import STARTS, STRENGTHS, photographs

Array = NDArray[np.float64]
Truth = Mapping[str, frozenset[str]]
_COUNTS = ("captions", "inventing", "invented", "said", "named", "shown")


def lines(path: Path) -> list[dict[str, Any]]:
    """Gzip JSON lines."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def scenes_truth(names: Sequence[str]) -> dict[str, frozenset[str]]:
    """What drawn scenes show, by their file names."""
    from seewhen.scenes import sample

    numbers = [int(name.removesuffix(".png").rpartition("_")[2]) for name in names]
    return {name: frozenset(sample("shifted", n).names) for name, n in zip(names, numbers, strict=True)}


def tally(said: Sequence[Mapping[str, str]], truth: Truth) -> Tally:
    """CHAIR's counts of each caption."""
    rows = []
    for line in said:
        shown = truth[line["image"]]
        named = [mention.object for mention in read_mentions(line["text"], chair_lexicon())]
        wrong = [name for name in named if name not in shown]
        rows.append((1, bool(wrong), len(wrong), len(named), len({*named} & shown), len(shown)))
    table = np.array(rows, float)
    counts: dict[Hashable, Array] = {name: table[:, k, None] for k, name in enumerate(_COUNTS)}
    return Tally(tuple(line["image"] for line in said), counts)


def metrics(c: Mapping[Any, Array]) -> dict[str, Array]:
    """In percent; objects per caption."""
    return {
        "chair_i": 100 * c["invented"] / np.maximum(c["said"], 1),
        "chair_s": 100 * c["inventing"] / c["captions"],
        "recall": 100 * c["named"] / c["shown"],
        "objects": c["said"] / c["captions"],
    }


def caption_scores(folder: Path, kind: str, truth: Truth) -> tuple[dict[str, Tally], dict[str, Any]]:
    """The counts of every setting, and its scores with intervals."""
    tallies: dict[str, Tally] = {}
    for path in sorted(folder.glob(f"{kind}.*.jsonl.gz")):
        first, *rest = lines(path)
        if "setting" in first:
            tallies[first["setting"]] = tally(rest, truth)
    told = {
        name: {k: [i.value, i.low, i.high] for k, i in intervals(one, metrics).items()}
        for name, one in tallies.items()
    }
    return tallies, told


def settings() -> Iterator[str]:
    """The strengths and starts by name."""
    for start in STARTS:
        for strength in sorted(STRENGTHS):
            yield f"{strength:g} from {start:g}"


def compared(tallies: Mapping[str, Tally], pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """Each first less its second, all metrics, with p of CHAIR_i and of recall corrected over these pairs."""
    there = [(a, b) for a, b in pairs if a in tallies and b in tallies]
    found: list[dict[str, Difference]] = [differences(tallies[a], tallies[b], metrics) for a, b in there]
    told: list[dict[str, Any]] = [
        {"of": a, "less": b, **{k: [d.value, d.low, d.high] for k, d in each.items()}}
        for (a, b), each in zip(there, found, strict=True)
    ]
    for name in ("chair_i", "recall"):
        for line, p in zip(told, holm([each[name].p for each in found]), strict=True):
            line[f"p_{name}"] = p
    return told


def hypotheses(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    """1 to 3: captions."""
    looks = sorted({name.partition(", ")[0] for name in tallies} - {*_PLACES, "regular"})
    each = list(settings())
    late = [name for name in each if name.endswith("0.85")]
    return {
        "boxes less other boxes": compared(tallies, [(f"boxes, {s}", f"other boxes, {s}") for s in each]),
        "boxes less elsewhere": compared(tallies, [(f"boxes, {s}", f"elsewhere, {s}") for s in each]),
        "boxes less regular": compared(tallies, [(f"boxes, {s}", "regular") for s in each]),
        "uniform less boxes": compared(tallies, [(f"uniform, {s}", f"boxes, {s}") for s in each]),
        "relevance less boxes": compared(tallies, [(f"{n}, {s}", f"boxes, {s}") for n in looks for s in late]),
        "relevance less regular": compared(tallies, [(f"{n}, {s}", "regular") for n in looks for s in late]),
    }


_PLACES = ("boxes", "other boxes", "elsewhere", "uniform")


# -- questions --------------------------------------------------------------------------------------------------


def question_scores(asked: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """4: how odds of yes move, and how well they tell."""
    images = list(dict.fromkeys(line["image"] for line in asked))
    row = np.array([images.index(line["image"]) for line in asked])
    there = np.array([line["there"] for line in asked])
    odds = {name: np.array([line[name] for line in asked]) for name in asked[0] if name not in _ABOUT}

    def moved(values: Array, rows: NDArray[np.bool_]) -> Tally:
        total = np.asarray(np.bincount(row[rows], weights=values[rows], minlength=len(images)), np.float64)
        number = np.asarray(np.bincount(row[rows], minlength=len(images)), np.float64)
        return Tally(tuple(images), {"sum": total[:, None], "number": number[:, None]})

    def mean(c: Mapping[Any, Array]) -> dict[str, Array]:
        return {"mean": c["sum"] / np.maximum(c["number"], 1)}

    def difference(a: Array, b: Array, rows: NDArray[np.bool_]) -> Difference:
        return differences(moved(a, rows), moved(b, rows), mean)["mean"]

    draws = Draws(row.astype(np.int64), 0, 1000)
    told: dict[str, Any] = {"regular": {"auroc": _estimate(draws, odds["regular"], there)}}
    lines_: list[dict[str, Any]] = []
    ps: list[float] = []
    for setting in settings():
        right, wrong, even = (odds[f"{name}, {setting}"] for name in ("right", "wrong", "uniform"))
        own = difference(right, wrong, there)
        ps.append(own.p)
        lines_.append(
            {
                "setting": setting,
                "there": {
                    "right less wrong": _three(own),
                    "right less regular": _three(difference(right, odds["regular"], there)),
                    "uniform less regular": _three(difference(even, odds["regular"], there)),
                },
                "not there": {
                    "any place less regular": _three(difference(right, odds["regular"], ~there)),
                    "uniform less regular": _three(difference(even, odds["regular"], ~there)),
                },
                "auroc": {
                    name: _estimate(draws, values, there)
                    for name, values in (("right", right), ("wrong", wrong), ("uniform", even))
                },
                "auroc, right less regular": _gap(draws, right, odds["regular"], there),
                "auroc, right less wrong": _gap(draws, right, wrong, there),
            }
        )
    for line, p in zip(lines_, holm(ps), strict=True):
        line["p_right_less_wrong"] = p
    return {"images": len(images), "questions": len(asked), **told, "settings": lines_}


_ABOUT = ("image", "object", "there")


def _three(found: Difference) -> list[float]:
    return [found.value, found.low, found.high]


def _estimate(draws: Draws, values: Array, there: NDArray[np.bool_]) -> list[float]:
    return list(asdict(draws.estimate(partial(auroc, values, there, None))).values())


def _gap(draws: Draws, a: Array, b: Array, there: NDArray[np.bool_]) -> list[float]:
    found = draws.estimate(lambda w: auroc(a, there, None, w) - auroc(b, there, None, w))
    return list(asdict(found).values())


def rounded(value: Any) -> Any:
    """Four digits are enough."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


def _pictures(folder: Path, kind: str) -> list[str]:
    """The pictures that were described."""
    return [line["image"] for line in lines(folder / f"{kind}.regular.jsonl.gz")[1:]]


def _unasked(folder: Path, kind: str) -> dict[str, Any]:
    return {"images": len(_pictures(folder, kind)), "questions": 0, "settings": []}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m where.score", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("kind", choices=["scenes", "photo"])
    parser.add_argument("--store", type=Path, help="of the photographs")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    answers = given.folder / f"{given.kind}.questions.jsonl.gz"
    asked = lines(answers) if answers.exists() else []  # a run of captions alone
    (made,) = lines(given.folder / f"{given.kind}.about.jsonl.gz")
    if given.kind == "scenes":
        truth = scenes_truth(_pictures(given.folder, given.kind))
    else:
        truth = {picture.name: frozenset(picture.objects) for picture in photographs(given.store, 10_000)}
    tallies, scores = caption_scores(given.folder, given.kind, truth)
    told = {
        "made": made,
        "captions": scores,
        "hypotheses": hypotheses(tallies),
        "questions": question_scores(asked) if asked else _unasked(given.folder, given.kind),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(rounded(told), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
