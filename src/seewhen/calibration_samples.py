"""Samples to calibrate on: from a JSON Lines file beside pictures, or from the packaged scenes.

The scenes come from the training split; no scene of the benchmarks' splits is ever among them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput
from seewhen.methods.ict import Question
from seewhen.methods.vti import Demonstration

DESCRIBE = "Please describe this image in detail."
# Beyond the scenes that the packaged model is trained on.
_SEED = 7


def demonstrations(images: Path | None, samples: Path | None, count: int) -> list[Demonstration]:
    """For VTI: lines with image, faithful, hallucinated and, if wanted, prompt."""
    if images is None:
        return _scene_demonstrations(count)
    return [
        Demonstration(images / line["image"], line.get("prompt", DESCRIBE), line["faithful"], line["hallucinated"])
        for line in _lines(images, samples, count, ("image", "faithful", "hallucinated"))
    ]


def questions(images: Path | None, samples: Path | None, count: int) -> list[Question]:
    """For ICT: lines with image, question, answer (yes or no) and, if known, box."""
    if images is None:
        return _scene_questions(count)
    return [
        Question(
            images / line["image"],
            line["question"],
            line["answer"],
            tuple(line["box"]) if line.get("box") else None,
        )
        for line in _lines(images, samples, count, ("image", "question", "answer"))
    ]


def _lines(images: Path, samples: Path | None, count: int, wanted: tuple[str, ...]) -> list[dict[str, Any]]:
    path = samples or images / "calibration.jsonl"
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except FileNotFoundError:
        raise InvalidInput(
            f"There is no file {path}.", f"One JSON object per line: {', '.join(wanted)}."
        ) from None
    except (ValueError, OSError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.", "It must be JSON Lines.") from None
    for number, line in enumerate(lines, 1):
        missing = [name for name in wanted if not isinstance(line, dict) or name not in line]
        if missing:
            raise InvalidInput(f"{path}, line {number}, has no {', '.join(missing)}.", "Add it.")
    return lines[:count]


def _scene_demonstrations(count: int) -> list[Demonstration]:
    from seewhen.scenes import dataset, render
    from seewhen.scenes.captions import caption, expected
    from seewhen.scenes.streams import Stream

    found = []
    for scene in dataset("train", count, seed=_SEED):
        key = ("calibration", scene.index)
        unseen = expected(scene, 2, Stream(_SEED, *key))
        # The same stream twice: both captions are alike up to what nobody saw.
        faithful, hallucinated = (caption(scene, Stream(_SEED, *key), names) for names in ((), unseen))
        found.append(Demonstration(render(scene), DESCRIBE, faithful, hallucinated))
    return found


def _scene_questions(count: int) -> list[Question]:
    from seewhen.scenes import dataset, pope, render

    scenes = {scene.image: scene for scene in dataset("train", -(-count // 2), seed=_SEED)}
    found = []
    for asked in pope(list(scenes.values()), "adversarial", per_scene=1, seed=_SEED):
        scene, box = scenes[asked["image"]], None
        for thing in scene.things:
            if asked["label"] == "yes" and f" {thing.name} in" in asked["text"] and len(scene.of(thing.name)) == 1:
                box = thing.box
        found.append(Question(render(scene), asked["text"], asked["label"], box))
    return found[:count]
