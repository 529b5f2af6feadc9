"""Gives shorter runs something to be compared with: `python benchmarks/embedded/baselines.py RUNS`.

A report compares runs over the same scenes and seeds. Where a method was run on fewer of them, this writes
the answers of regular decoding (and of min-p, when sampling) to those very scenes and seeds as runs of
their own, scored anew. Nothing is answered again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from seewhen.runs.evaluate import Ask
from seewhen.runs.report import BASELINES, read_runs
from seewhen.runs.scoring import result_of, score_records, write_counts
from seewhen.runs.store import Run, to_json

SCENES = 150


def setting(run: Run) -> str:
    """All of a configuration but the method."""
    return json.dumps({k: v for k, v in run.config.items() if k != "method"}, sort_keys=True)


def restrict(run: Run, images: set[str], seeds: int, samples: int) -> None:
    """Write the part of a run that lies in some images and the first seeds."""
    records = [r for r in run.records if r.image in images and r.seed < seeds]
    assert len(records) == samples, (run.path, len(records), samples)
    asked = run.config["benchmark"]
    benchmark = Ask(asked["name"], split=asked["split"], scenes=SCENES).load()
    target = run.path.parent / f"{run.path.name}_{len(images)}_{seeds}"
    target.mkdir(exist_ok=True)
    manifest = {"format": 1, "config": run.config, "environment": run.environment}
    (target / "manifest.json").write_text(to_json(manifest), encoding="utf-8")
    (target / "samples.jsonl").write_text("".join(r.line() for r in records), encoding="utf-8")
    scored = score_records(benchmark, records, range(seeds))
    write_counts(target, scored)
    (target / "result.json").write_text(to_json(result_of(benchmark, scored, records)), encoding="utf-8")
    print(target.name)


def main() -> None:
    """Look for shorter runs and write their baselines."""
    runs = read_runs([Path(sys.argv[1])])
    baselines: dict[tuple[str, str], Run] = {}
    for run in runs:
        key = (setting(run), run.config["method"]["label"])
        if key[1] in BASELINES and size(run) > size(baselines.get(key)):
            baselines[key] = run
    done: set[tuple[Path, int, int]] = set()
    for run in runs:
        names = BASELINES if run.config["decoding"]["mode"] == "sample" else BASELINES[:1]
        for name in names:
            base = baselines.get((setting(run), name))
            if base is None or run.result is None or size(run) >= size(base):
                continue
            images = json.loads((run.path / "counts.json").read_text())["images"]
            part = (base.path, len(images), run.result["seeds"])
            if run.config["method"]["label"] not in BASELINES and part not in done:
                restrict(base, set(images), run.result["seeds"], run.result["samples"])
                done.add(part)


def size(run: Run | None) -> int:
    """How many answers a run is scored on."""
    return int(run.result["samples"]) if run and run.result else 0


if __name__ == "__main__":
    main()
