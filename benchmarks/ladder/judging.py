"""`confirm` with a verdict of the rung's own: fitted on other scenes than the exam's, its threshold chosen there.

The rule, the same for every rung: of the thresholds below, the one with the lowest CHAIR_i of greedy captions
among those whose recall is at most a point below regular decoding's; where there is none, the lowest threshold.
Marked captions, greedy and sampled, are what a verdict is fitted on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ladder.exam import OTHER, rows_together, scenes_of
from ladder.measures import METRICS, counted, values
from seewhen.decoding.method import Method
from seewhen.methods import method
from seewhen.runs.captioning import Captions
from seewhen.runs.labelled import Labelled, drawn
from seewhen.verdicts.fitting import fit_verdict
from seewhen.verdicts.verdict import WRITTEN, Signals, Verdict, sigmoid

if TYPE_CHECKING:
    from ladder.exam import Exam

THRESHOLDS = (-4.0, -3.0, -2.5, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5)  # log-odds of the verdict, tried from below
ALLOWED = 1.0  # points of recall
HOPELESS = 4.0  # points of recall below which higher thresholds are not tried: they lose more

Level = Mapping[str, float]
Mention = tuple[Signals, str, bool]


def judged(exam: Exam, drafts: int) -> str:
    """The method with the rung's own verdict, which is made if it is not there."""
    path = exam.verdict.with_name(f"verdict-{drafts}.json")
    further = f",drafts={drafts}" if drafts else ""
    spec = f'confirm:coco:verdict="{path}"{further}'
    if path.is_file():
        return spec
    fit, choose = exam.sizes.judged
    verdict = fitted(exam, fit, f"confirm:mark:lexicon=coco,verdict=asking{further}")
    unchosen = path.with_name(f"fit-{drafts}.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    verdict.save(unchosen)
    regular = level(exam, "regular", fit, choose)
    levels: dict[float, Level] = {}
    for threshold in THRESHOLDS:
        tried = f'confirm:coco:verdict="{unchosen}",threshold={threshold}{further}'
        levels[threshold] = level(exam, tried, fit, choose)
        if levels[threshold]["recall"] < regular["recall"] - HOPELESS:
            break
    chosen = choice(regular, levels)
    about = {"scenes": choose, "regular": regular, "chosen": chosen, "levels": levels}
    path.with_name(f"choosing-{drafts}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    replace(verdict, threshold=sigmoid(chosen)).save(path)
    return spec


def fitted(exam: Exam, count: int, marking: str) -> Verdict:
    """From greedy and sampled captions of the first scenes, first mentions."""
    marks, images = method(marking), drawn(count)
    captions = Captions(exam.asker, "coco", exam.sizes.tokens, batch=rows_together(marks))
    found = [each for seed in (None, 0) for each in mentions(captions, images, marks, seed)]
    signals, words, there = [s for s, _, _ in found], [w for _, w, _ in found], [t for _, _, t in found]
    verdict = fit_verdict(signals, words, there, offsets=False)
    return replace(verdict, about={**verdict.about, "images": count, "captions": "greedy, and sampled once"})


def mentions(captions: Captions, images: list[Labelled], marks: Method, seed: int | None) -> Iterator[Mention]:
    """The first mention of each object of each caption: what is known of it, its name, whether it is there."""
    for some, batches in captions.described(marks, images, seed, True):
        told = [row for batch in batches if batch.trace is not None for row in batch.trace.told]
        for image, row in zip(some, told, strict=True):
            first = {each["object"]: each for each in reversed(row["verdicts"])}
            for name, each in first.items():
                yield Signals(**{one: each.get(one) for one in WRITTEN}), name, name in image.objects


def level(exam: Exam, spec: str, skip: int, count: int) -> dict[str, float]:
    """CHAIR_i and recall of greedy captions of scenes that the verdict was not fitted on."""
    ids = exam.greedy(method(spec), OTHER, skip + count, skip)
    totals = counted(ids[None], scenes_of(OTHER, skip + count)[skip:]).sum(0)
    found = dict(zip(METRICS, values(totals), strict=True))
    return {name: round(float(found[name]), 3) for name in ("chair_i", "recall")}


def choice(regular: Level, levels: Mapping[float, Level]) -> float:
    """The threshold by the rule."""
    allowed = [each for each, there in levels.items() if there["recall"] >= regular["recall"] - ALLOWED]
    return min(allowed, key=lambda each: (levels[each]["chair_i"], each)) if allowed else min(levels)
