"""What CAI's tilt does to attention, and what a model is like: `python -m where.smear packaged|photo|FOLDER`.

Drawn scenes that no other study uses; `photo` with annotated photographs of --store. One JSON file:
`seewhen.runs.diagnostics`, for CAI as published and for other tilts.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import seewhen
from seewhen.runs.diagnostics import diagnostics
from seewhen.runs.labelled import Labelled, labelled_scene
from seewhen.scenes import dataset
from where.study import Picture, about, photographs

TILTS = {
    "cai": "cai",
    "floor 0, scale 20": "cai:floor=0,scale=20",
    "uniform": "cai:relevance=uniform,floor=none",
    "exponential, strength 4, floor 0, scale 20": "cai:tilt=exponential,strength=4,floor=0,scale=20",
}


def labelled(picture: Picture) -> Labelled:
    """A photograph of the study with what is known of it."""
    boxes: dict[str, tuple[Any, ...]] = {}
    for name, box in picture.boxes:
        boxes[name] = (*boxes.get(name, ()), box)
    return Labelled(picture.name, picture.image, frozenset(picture.objects), boxes)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m where.smear", description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--store", type=Path, help="of the photographs: see ../photographs")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    model, processor = seewhen.load(given.model, dtype="float32", device=device)
    if given.model == "photo":
        pictures = [labelled(picture) for picture in photographs(given.store, given.count)]
    else:
        pictures = [labelled_scene(scene) for scene in dataset("shifted", given.count, start=7000)]
    told: dict[str, Any] = {**about(f"where.smear {given.model} --count {given.count} --batch {given.batch}")}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for name, method in TILTS.items():
        began = time.monotonic()
        first = name == "cai"  # the rest is the same for all
        found = diagnostics(model, processor, pictures, labels=first, batch=given.batch, method=method).to_json()
        told |= {"diagnostics": found} if first else {}
        told.setdefault("tilts", {})[name] = {"method": method, **found["tilt"]}
        given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(name, f"{time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
