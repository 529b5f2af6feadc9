"""Where the model looks and when it doubts: the measured figures, on photographs whose boxes are known.

    python -m photographs look --store STORE --out RUN

Pointing accuracy by layer, AUROC of entropy by layer, how often each layer fires, calibration, and the confident
hallucinations that no gate can see; the numbers go to RUN/look/*.json, the drawings beside them.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

import seewhen
from photographs import holdout
from photographs.photos import read_shard
from seewhen.backbones.prompts import chat_prompt
from seewhen.errors import InvalidInput
from seewhen.showing import figures
from seewhen.showing.figures.cases import Box, Case
from seewhen.showing.figures.catalogue import FIGURES, Wish
from seewhen.showing.figures.tracing import DESCRIBE, Tracer, answered

DRAWN = {
    "regular": ("pointing", "auroc", "calibration"),
    "cai": ("fired", "median-entropy", "failure"),
}


def cases(store: Path, prompt: str, limit: int | None) -> list[Case]:
    """Unanswered cases: annotated photographs with their objects and boxes."""
    names, objects = holdout.load_table(store / "coco_objects.json.gz")
    known: Mapping[str, list] = json.loads((store / "boxes.json").read_text("utf-8"))
    pictures: dict[int, bytes] = {}
    for shard in sorted(store.glob("heldout-*.safetensors")):
        pictures |= read_shard(shard)
    found: list[Case] = []
    for number in holdout.shuffled([int(n) for n in known if int(n) in pictures], "look")[:limit]:
        boxes: dict[str, tuple[Box, ...]] = {}
        for thing, left, top, right, bottom in known[str(number)]:
            boxes[thing] = (*boxes.get(thing, ()), (left, top, right, bottom))
        shown = tuple(names[i] for i in objects[number])
        picture = Image.open(io.BytesIO(pictures[number])).convert("RGB")
        unanswered: Any = None
        found.append(Case(unanswered, 0, picture, str(number), DESCRIBE, prompt, shown, boxes))
    if not found:
        raise InvalidInput(f"{store} has no annotated photographs.", "Make the store with --annotated.")
    return found


def look(store: Path, run: Path, limit: int | None, tokens: int, batch: int) -> dict[str, Any]:
    """Answers with and without CAI, and the figures of both."""
    loaded = seewhen.load(run / "model")
    tracer = Tracer.of(loaded, batch=batch)
    asked = cases(store, chat_prompt(loaded.processor, DESCRIBE, 1), limit)
    told: dict[str, Any] = {"photographs": len(asked)}
    for method, wanted in DRAWN.items():
        done = answered(tracer, asked, method, max_new_tokens=tokens)
        for name in wanted:
            try:
                drawing = FIGURES[name].draw(done, Wish())
            except InvalidInput as error:  # nothing hallucinated, or nothing fired
                told[name] = str(error)
                continue
            figures.save(drawing, run / "look" / f"{name}.png", run / "look" / f"{name}.json")
            told[name] = drawing.data
    return told
