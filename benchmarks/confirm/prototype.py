"""What a prototype of `confirm` had measured before it was built, beside what the study found.

python -m confirm.prototype RUNS --exam DIR: AUROC on the captions that the prototype looked at, too. What it found
itself was noted by hand: one seed, a verdict of its own for scenes, 442 of the 445 test photographs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from confirm.captions import material
from confirm.detector import judged
from confirm.verdicts import DATA, MODELS
from seewhen.verdicts.verdict import Verdict

RESULT = Path(__file__).parent / "results" / "prototype.json"
SIGNALS = ("odds", "entropy", "logprob", "position")
# What it measured: part, method and mode of the row here; change of CHAIR_i and of recall there.
CHANGES: dict[str, tuple[str, str, str, float, float]] = {
    "photographs, greedy, asking alone, threshold 0": ("photo-test", "asking0", "greedy", -1.0, -1.0),
    "photographs, greedy, asking alone, threshold 1": ("photo-test", "asking1", "greedy", -3.6, -3.8),
    "photographs, greedy, cut after 3 sentences": ("photo-test", "regular, 3 sentences", "greedy", -5.5, -5.1),
    "photographs, greedy, cut after 4 sentences": ("photo-test", "regular, 4 sentences", "greedy", -2.2, -1.4),
    "photographs, sampled, asking alone, threshold 0": ("photo-test", "asking0", "t1", -9.7, -1.1),
    "photographs, sampled, asking alone, threshold 1": ("photo-test", "asking1", "t1", -14.6, -2.3),
    "photographs, sampled, cut after 3 sentences": ("photo-test", "regular, 3 sentences", "t1", -6.4, -7.8),
    "photographs, sampled, cut after 4 sentences": ("photo-test", "regular, 4 sentences", "t1", -2.0, -3.1),
    "photographs, temperature 0.33": ("photo-test", "regular", "t0.33", -11.9, 4.1),
    "photographs, greedy, word level": ("photo-ablation", "word-level", "greedy", -1.4, 0.3),
    "photographs, greedy, odds less those without a picture": ("photo-ablation", "blind", "greedy", -0.4, -0.4),
    "scenes, greedy, asking alone, threshold 0": ("scenes-test", "asking0", "greedy", 1.9, -12.0),
    "scenes, sampled, asking alone, threshold 0": ("scenes-test", "asking0", "t1", -0.8, -7.1),
    "scenes, greedy, a verdict, threshold 0": ("scenes-test", "verdict0", "greedy", -0.7, -4.6),
    "scenes, sampled, a verdict, threshold 0": ("scenes-test", "verdict0", "t1", -7.0, -1.1),
}
# The recoverable share without other captions.
CEILINGS = {
    "photographs, greedy": ("photo-test", "greedy", -1.5),
    "photographs, sampled": ("photo-test", "t1", 14.6),
    "scenes, greedy": ("scenes-test", "greedy", 0.0),
}
# Of first mentions in greedy captions of the validation photographs.
AUROC = {"odds": 0.831, "entropy": 0.744, "logprob": 0.733, "position": 0.773, "mentions": 833, "invented": 220}


def table(scores: dict[str, Any]) -> str:
    """The prototype's changes beside those found here; a star where they are outside the interval."""
    lines = ["| | Δ CHAIR_i: prototype | here | Δ recall: prototype | here |", "|---|---|---|---|---|"]
    for title, (part, method, mode, *theirs) in CHANGES.items():
        (row,) = (r for r in scores[part]["rows"] if (r["method"], r["mode"], r["tokens"]) == (method, mode, 64))
        cells = []
        for value, metric in zip(theirs, ("chair_i", "recall"), strict=True):
            cells += _pair(value, row[metric]["difference"])
        lines.append(" | ".join([f"| {title}", *cells]) + " |")
    lines += ["", "| recoverable, without other captions | prototype | here |", "|---|---|---|"]
    for title, (part, mode, value) in CEILINGS.items():
        found = scores[part]["ceiling"][mode]["alone"]["recoverable"]
        cells = _pair(value, {name: 100 * each for name, each in found.items()})
        lines.append(" | ".join([f"| {title}", *cells]) + " |")
    return "\n".join(lines)


def _pair(theirs: float, ours: dict[str, float]) -> list[str]:
    star = "" if ours["low"] <= theirs <= ours["high"] else " *"
    return [f"{theirs:+.1f}{star}", f"{ours['value']:+.1f} ({ours['low']:+.1f} to {ours['high']:+.1f})"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.prototype", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--exam", type=Path, required=True)
    given = parser.parse_args()
    truth = {item.name: item.objects for item in material("photo-validation", given.exam, None)}
    verdict = Verdict.load(DATA / f"verdict_{MODELS['photo']}.json")
    found = judged([given.runs / "photo-validation.mark.greedy.n64.jsonl.gz"], truth, verdict)
    here = {name: round(found["auroc"][name]["auroc"]["value"], 3) for name in SIGNALS}
    here |= {name: found[name] for name in ("mentions", "invented")}
    result = {"command": "python -m confirm.prototype", "auroc": {"prototype": AUROC, "here": here}}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
