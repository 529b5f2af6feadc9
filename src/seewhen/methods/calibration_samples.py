"""Samples to calibrate on: from a JSON Lines file beside pictures, or from the packaged scenes.

The scenes come from the training split; no scene of the benchmarks' splits is ever among them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NotRequired

from annotated_types import Len
from typing_extensions import TypedDict

from seewhen.methods.ict import LabelledQuestion
from seewhen.methods.vti import Demonstration
from seewhen.reading import check_form, parse_json, read_text

DESCRIBE = "Please describe this image in detail."
# Beyond the scenes that the packaged model is trained on.
_SEED = 7


class _Description(TypedDict):
    image: str
    faithful: str
    hallucinated: str
    prompt: NotRequired[str]


class _Asked(TypedDict):
    image: str
    question: str
    answer: str
    box: NotRequired[Annotated[list[float], Len(4, 4)] | None]


def demonstrations(images: Path | None, samples: Path | None, count: int) -> list[Demonstration]:
    """For VTI: lines with image, faithful, hallucinated and, if wanted, prompt."""
    if images is None:
        return _scene_demonstrations(count)
    return [
        Demonstration(images / line["image"], line.get("prompt", DESCRIBE), line["faithful"], line["hallucinated"])
        for line in _lines(images, samples, count, _Description)
    ]


def questions(images: Path | None, samples: Path | None, count: int) -> list[LabelledQuestion]:
    """For ICT: lines with image, question, answer (yes or no) and, if known, box."""
    if images is None:
        return _scene_questions(count)
    return [
        LabelledQuestion(
            images / line["image"],
            line["question"],
            line["answer"],
            tuple(line["box"]) if line.get("box") else None,
        )
        for line in _lines(images, samples, count, _Asked)
    ]


def _lines(images: Path, samples: Path | None, count: int, form: type) -> list[dict[str, Any]]:
    path = samples or images / "calibration.jsonl"
    hint = f"One JSON object per line: {', '.join(form.__required_keys__)}."  # type: ignore[attr-defined]
    found = []
    for number, text in enumerate(read_text(path, hint).split("\n"), 1):
        if text.strip():
            line = parse_json(text, f"{path}, line {number}", hint)
            check_form(form, line, f"{path}, line {number}", hint)
            found.append(line)
    return found[:count]


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


def _scene_questions(count: int) -> list[LabelledQuestion]:
    from seewhen.scenes import dataset, pope, render

    scenes = {scene.image: scene for scene in dataset("train", -(-count // 2), seed=_SEED)}
    found = []
    for asked in pope(list(scenes.values()), "adversarial", per_scene=1, seed=_SEED):
        scene, box = scenes[asked["image"]], None
        for thing in scene.things:
            if asked["label"] == "yes" and f" {thing.name} in" in asked["text"] and len(scene.of(thing.name)) == 1:
                box = thing.box
        found.append(LabelledQuestion(render(scene), asked["text"], asked["label"], box))
    return found[:count]
