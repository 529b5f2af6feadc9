"""Fits the verdicts on marked captions of validation material: `python -m confirm.verdicts RUNS ...`."""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from confirm.captions import material
from seewhen.verdicts.fitting import fit_verdict
from seewhen.verdicts.verdict import WRITTEN, Signals

MODELS = {"photo": "photo", "scenes": "packaged"}


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """What a run wrote, its head first."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


def mentions(path: Path, truth: dict[str, frozenset[str]]) -> Iterator[tuple[Signals, str, bool]]:
    """The first mention of each object of each caption: its signals, its name, whether it is there."""
    for line in list(lines(path))[1:]:
        seen: set[str] = set()
        for said in line["told"]["verdicts"]:
            if said["object"] in seen or "odds" not in said:
                continue
            seen.add(said["object"])
            signals = Signals(**{name: said[name] for name in WRITTEN})
            yield signals, said["object"], said["object"] in truth[line["image"]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m confirm.verdicts", description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--exam", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for model, name in MODELS.items():
        part = f"{model}-validation"
        truth = {item.name: item.objects for item in material(part, given.exam, None)}
        files = sorted(given.runs.glob(f"{part}.mark.*.n64.jsonl.gz"))
        found = [one for path in files for one in mentions(path, truth)]
        signals, words, there = zip(*found, strict=True)
        verdict = fit_verdict(signals, words, there)
        about = {**verdict.about, "material": part, "images": len(truth), "runs": [f.name for f in files]}
        replace(verdict, about=about).save(given.out / f"verdict_{name}.json")
        print(model, about["mentions"], about["invented"], verdict.written)


if __name__ == "__main__":
    main()
