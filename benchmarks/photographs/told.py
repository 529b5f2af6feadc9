"""What the captions of each method are made of: how many objects, how many invented, and how common those are.

    python -m photographs.told runs --table coco_objects.json.gz --out told.json

Of greedy captions of at most 64 tokens. "Common" is the share of all photographs in the table that show an object.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

from photographs import holdout
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.methods.grammar import label_of
from seewhen.runs.store import Run, read_run


def told(run: Run, shown: dict[str, frozenset[str]], common: dict[str, float]) -> dict[str, Any]:
    """Counts over the captions of a run; each object counts once per caption."""
    reader = CaptionReader()
    named: list[str] = []
    invented: list[str] = []
    for record in run.records:
        objects = set(reader.objects(record.answer))
        named += objects
        invented += objects - shown[record.image]
    captions = len(run.records)
    right = list((Counter(named) - Counter(invented)).elements())

    def commonness(things: list[str]) -> float | None:
        return round(100 * sum(common[thing] for thing in things) / len(things), 1) if things else None

    return {
        "objects": round(len(named) / captions, 2),
        "invented": round(len(invented) / captions, 2),
        "common_right": commonness(right),
        "common_invented": commonness(invented),
        "often_invented": [f"{thing} {n}" for thing, n in Counter(invented).most_common(5)],
    }


def main() -> None:
    """All greedy runs of 64 tokens."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    names, objects = holdout.load_table(options.table)
    shown = {str(number): frozenset(names[i] for i in things) for number, things in objects.items()}
    counted = Counter(thing for things in shown.values() for thing in things)
    common = {name: counted[name] / len(shown) for name in names}
    found = {}
    for path in sorted(options.runs.glob("chair_*greedy*/manifest.json")):
        run = read_run(path.parent)
        if run.config["decoding"]["max_new_tokens"] == 64:
            found[label_of(run.config["method"])] = told(run, shown, common)
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
