"""How well `check` and `confirm` tell invented from true objects, on test captions: `python -m confirm.detector`.

The first mention of each object in regular captions, judged with the fits that come with the package.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from confirm.captions import material
from confirm.score import lines
from confirm.verdicts import DATA, MODELS
from seewhen.verdicts.ceiling import Draws, Pairs, calibration, separations
from seewhen.verdicts.verdict import WRITTEN, Signals, Verdict

RESULT = Path(__file__).with_name("detector.json")
CAPTIONS = {"greedy": ("greedy",), "sampled": tuple(f"t1-s{seed}" for seed in range(5))}
COLUMNS = {
    "verdict": "verdict of `confirm`",
    "asked": "verdict of `check`",
    "odds": "odds when asked",
    "entropy": "entropy",
    "logprob": "log-probability",
    "position": "position (a control)",
}


def judged(paths: Sequence[Path], truth: Mapping[str, frozenset[str]], verdict: Verdict) -> dict[str, Any]:
    """AUROC of every signal and of both verdicts, and the calibration of these."""
    said, verdicts, asked = [], [], []
    for path in paths:
        for line in list(lines(path))[1:]:
            first = {each["object"]: each for each in reversed(line["told"]["verdicts"])}
            for name, each in first.items():
                signals = Signals(**{signal: each.get(signal) for signal in WRITTEN})
                said.append((line["image"], name in truth[line["image"]], signals))
                verdicts.append(verdict.log_odds(signals, name))
                asked.append(verdict.log_odds(Signals(signals.odds), name))
    image, there, known = zip(*said, strict=True)
    doubt = {name: [getattr(each, name) for each in known] for name in ("logprob", "entropy", "position")}
    pairs = Pairs.of(image, there, [True] * len(there), [each.odds for each in known], **doubt)
    draws = Draws(pairs.image, seed=0, replicates=1000)
    found = separations(pairs, np.array(verdicts), draws)
    found["verdict"] = found.pop("together")
    found["asked"] = separations(pairs, np.array(asked), draws)["together"]
    curves = {"verdict": verdicts, "asked": asked}
    return {
        "images": draws.images,
        "mentions": len(there),
        "invented": len(there) - sum(there),
        "auroc": {name: asdict(found[name]) for name in COLUMNS},
        "calibration": {
            name: [asdict(part) for part in calibration(np.array(values), pairs.true, draws)]
            for name, values in curves.items()
        },
    }


def table(result: Mapping[str, Any]) -> str:
    """The table of docs/confirm.md."""
    rows = ["| AUROC (within quarters of the position) | " + " | ".join(result) + " |"]
    rows.append("|---|" + "---|" * len(result))
    for name, title in COLUMNS.items():
        cells = []
        for part in result.values():
            whole, within = (part["auroc"][name][kind]["value"] for kind in ("auroc", "within_position"))
            cells.append(f"{whole:.3f} ({within:.3f})")
        rows.append(f"| {title} | " + " | ".join(cells) + " |")
    for name, title in (("verdict", "`confirm`"), ("asked", "`check`")):
        gaps = (max(_gap(group) for group in part["calibration"][name]) for part in result.values())
        rows.append(
            f"| calibration of {title}: largest gap of eight groups | "
            + " | ".join(f"{gap:.2f}" for gap in gaps)
            + " |"
        )
    counted = (f"{part['mentions']}, {part['invented']}" for part in result.values())
    rows.append("| objects said, invented | " + " | ".join(counted) + " |")
    return "\n".join(rows) + "\n"


def _gap(group: Mapping[str, Any]) -> float:
    """What was predicted against what is so."""
    return abs(group["predicted"] - group["there"]["value"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.detector", description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--exam", type=Path, required=True)
    given = parser.parse_args()
    found = {}
    for model, name in MODELS.items():
        truth = {item.name: item.objects for item in material(f"{model}-test", given.exam, None)}
        verdict = Verdict.load(DATA / f"verdict_{name}.json")
        for way, seeds in CAPTIONS.items():
            paths = [given.runs / f"{model}-test.mark.{seed}.n64.jsonl.gz" for seed in seeds]
            found[f"{name}, {way}"] = judged(paths, truth, verdict)
    RESULT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
