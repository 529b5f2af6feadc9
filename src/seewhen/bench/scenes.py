"""The packaged scenes through the very same scorers: POPE, CHAIR and MME with exact truth and no files."""

from __future__ import annotations

from pathlib import Path

from seewhen.bench import mme, pope
from seewhen.bench.base import Benchmark, Sample
from seewhen.bench.chair import CaptionReader, Chair
from seewhen.errors import InvalidInput


def check_part(name: str, split: str) -> None:
    """Refuse a part of the scenes that a benchmark does not have."""
    from seewhen import scenes as made

    part, _, kind = split.partition("-")
    if part not in made.SPLITS:
        raise InvalidInput(f"There is no part {part!r} of the scenes.", f"Use one of {', '.join(made.SPLITS)}.")
    if name not in ("pope", "chair", "mme"):
        raise InvalidInput("AMBER is not made from scenes.", "Use pope, chair or mme, or name AMBER's own folder.")
    if kind and name != "pope":
        raise InvalidInput(f"{name} has no split {split!r}.", f"Use {part!r}.")
    if kind and kind not in pope.KINDS:
        raise InvalidInput(f"There is no POPE setting {kind!r}.", f"Choose one of: {', '.join(pope.KINDS)}.")


def scene_benchmark(
    name: str, split: str, count: int, *, parser: str | None = None, lemmatizer: str = "offline"
) -> Benchmark:
    """A benchmark over `count` scenes of a part ("val", "test", "shifted"; POPE also "shifted-popular")."""
    from seewhen import scenes as made
    from seewhen.scenes.questions import SUBTASKS

    check_part(name, split)
    part, _, kind = split.partition("-")
    pictures = made.dataset(part, count)  # type: ignore[arg-type]
    if name == "pope":
        kinds = (kind,) if kind else pope.KINDS
        questions: list[Sample] = []
        for each in kinds:
            records = made.pope(pictures, each)  # type: ignore[arg-type]
            questions += pope.questions_from(enumerate(records, 1), f"{part}-{each}", Path("scenes"))
        return pope.Pope(tuple(questions), parser or "C")
    if name == "chair":
        truth = {image: frozenset(things) for image, things in made.chair(pictures).items()}
        return Chair(truth, tuple(truth), CaptionReader(lemmatizer))
    asked = [(subtask, dict(record)) for subtask in SUBTASKS for record in made.mme(pictures, subtask)]
    return mme.Mme(mme.questions_from(asked), parser or "official")
