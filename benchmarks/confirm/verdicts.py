"""Fits the verdicts on captions of validation material: `python -m confirm.verdicts STAGE RUNS --exam DIR`.

`first`: marked captions, nothing taken back. `attempts`: with them what that fit had to ask about in sentences
made again, so that the number of the attempt has a weight. `threshold`: the highest that keeps recall within
half a point. `drafts`, `threshold-drafts`: the same two with what four further captions of each picture name.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from confirm.captions import material
from confirm.score import METRICS, Study, lines, scores
from confirm.settings import TRIED, TRIED_DRAFTS, fit
from seewhen.verdicts.fitting import fit_verdict
from seewhen.verdicts.lexicon import chair_lexicon
from seewhen.verdicts.reader import read_mentions
from seewhen.verdicts.verdict import WRITTEN, Signals, Verdict, sigmoid

MODELS = {"photo": "photo", "scenes": "packaged"}
DATA = Path(__file__).parents[2] / "src" / "seewhen" / "verdicts" / "data"
MOST_LOST = 0.5  # points of recall on validation pictures


class Elsewhere:
    """How many drafts of each picture name an object; None where there are no drafts."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.named: dict[str, list[set[str]]] = {}
        for path in paths:
            for line in list(lines(path))[1:]:
                objects = {mention.object for mention in read_mentions(line["text"], chair_lexicon())}
                self.named.setdefault(line["image"], []).append(objects)

    def share(self, image: str, name: str) -> float | None:
        drafts = self.named.get(image)
        return sum(name in objects for objects in drafts) / len(drafts) if drafts else None


NONE = Elsewhere(())


def mentions(
    path: Path, truth: dict[str, frozenset[str]], elsewhere: Elsewhere = NONE
) -> Iterator[tuple[Signals, str, bool]]:
    """The first mention of each object of each caption: its signals, its name, whether it is there."""
    for line in list(lines(path))[1:]:
        seen: set[str] = set()
        for said in line["told"]["verdicts"]:
            if said["object"] in seen or "odds" not in said:
                continue
            seen.add(said["object"])
            there = said["object"] in truth[line["image"]]
            yield signals_of(line["image"], said, elsewhere), said["object"], there


def signals_of(image: str, said: dict[str, Any], elsewhere: Elsewhere) -> Signals:
    """What is known of one object of a caption."""
    known = {name: said.get(name) for name in WRITTEN}
    return Signals(**known | {"elsewhere": elsewhere.share(image, said["object"])})


def again(
    path: Path, truth: dict[str, frozenset[str]], elsewhere: Elsewhere = NONE
) -> Iterator[tuple[Signals, str, bool]]:
    """Objects asked about in a sentence made again; what first attempts show is in the marked captions."""
    for line in list(lines(path))[1:]:
        for said in line["told"]["all"]:
            if said["attempt"]:
                signals = signals_of(line["image"], said, elsewhere)
                yield signals, said["object"], said["object"] in truth[line["image"]]


def fitted(runs: Path, part: str, truth: dict[str, frozenset[str]], stage: str) -> Verdict:
    """The verdict of one model."""
    drawn = sorted(runs.glob(f"{part}.regular.t1-s1?.n64.jsonl.gz")) if stage == "drafts" else []
    elsewhere = Elsewhere(drawn)
    marked = sorted(runs.glob(f"{part}.mark.*.n64.jsonl.gz"))
    others = sorted(runs.glob(f"{part}.again.*.n64.jsonl.gz")) if stage != "first" else []
    first = [one for path in marked for one in mentions(path, truth, elsewhere)]
    more = [one for path in others for one in again(path, truth, elsewhere)]
    if drawn:  # of pictures that have drafts
        first, more = ([one for one in some if one[0].elsewhere is not None] for some in (first, more))
    verdict = fit_verdict(*zip(*first, strict=True))  # text by somebody else has no attempts
    about = {**verdict.about, "again": len(more), "again_invented": sum(not there for *_, there in more)}
    about |= {
        "material": part,
        "images": len(elsewhere.named or truth),
        "runs": [path.name for path in (*marked, *others, *drawn)],
    }
    about |= {"drafts": len(drawn)} if drawn else {}
    written = fit_verdict(*zip(*first, *more, strict=True)).written
    return replace(verdict, written=written, about=about)


def chosen(runs: Path, part: str, exam: Path, tried: Sequence[float], note: str) -> tuple[float, dict[str, float]]:
    """The highest of the tried thresholds that keeps recall on validation pictures, and the recall of each."""
    study = Study(runs, part, exam)

    def recall(method: str) -> float:
        found = [
            scores(study.counts(captions)) for seed, captions in study.runs[method, "t1", 64] if seed in (0, 1)
        ]
        return float(np.mean(found, axis=0)[METRICS.index("recall")])

    recalls = {f"{threshold:g}": round(recall(f"{note}{threshold:g}"), 2) for threshold in tried}
    regular = round(recall("mark"), 2)  # marking changes no token
    kept = [threshold for threshold in tried if recalls[f"{threshold:g}"] >= regular - MOST_LOST]
    return max(kept, default=min(tried)), {"regular": regular, **recalls}


def carry_out(stage: str, model: str, runs: Path, exam: Path) -> None:
    """One stage for one model."""
    drafts = "drafts" in stage
    part, shipped = f"{model}-validation", DATA / f"verdict_{MODELS[model]}{'_drafts' * drafts}.json"
    if stage.startswith("threshold"):
        tried, note = (TRIED_DRAFTS[model], "drafts4try") if drafts else (TRIED, "try")
        threshold, recalls = chosen(runs, part, exam, tried, note)
        verdict = Verdict.load(shipped)
        about = {**verdict.about, "log_odds_threshold": threshold, "validation_recall": recalls}
        replace(verdict, threshold=round(sigmoid(threshold), 6), about=about).save(shipped)
        print(model, threshold, recalls, flush=True)
        return
    truth = {item.name: item.objects for item in material(part, exam, None)}
    verdict = fitted(runs, part, truth, stage)
    verdict.save(Path(fit("first", part)) if stage == "first" else shipped)
    print(model, verdict.about["mentions"], verdict.about["invented"], verdict.written, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.verdicts", description=__doc__)
    parser.add_argument("stage", choices=["first", "attempts", "threshold", "drafts", "threshold-drafts"])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--exam", type=Path, required=True)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    given = parser.parse_args()
    for model in given.models:
        carry_out(given.stage, model, given.runs, given.exam)


if __name__ == "__main__":
    main()
