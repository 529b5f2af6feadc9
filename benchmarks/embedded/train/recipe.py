"""The recipe: every number of a training run, read from a JSON file."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput


@dataclass(frozen=True)
class Shape:
    """Sizes of the model."""

    vocabulary: int = 1024
    width: int = 256
    layers: int = 12
    heads: int = 8
    inner: int = 640
    tower_width: int = 192
    tower_layers: int = 4
    tower_heads: int = 6


@dataclass(frozen=True)
class Stage:
    """One stretch of training: AdamW, warm-up, cosine decay."""

    steps: int
    batch: int
    rate: float


@dataclass(frozen=True)
class FineTune:
    """A variant of the last stage, and the dials of its data.

    unseen  mean number of expected but absent things that a caption mentions
    doubt   share of the yes-questions that ask for such a thing
    hard    share of the no-questions that ask for popular or co-occurring things
    slip    share of answers that are simply wrong
    sharpen the output layer is multiplied by this in the end: a temperature that stays in the checkpoint
    """

    name: str
    steps: int
    batch: int
    rate: float
    unseen: float
    doubt: float
    hard: float = 0.4
    slip: float = 0.0
    sharpen: float = 1.0
    measure_at: tuple[int, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A run. `scenes` pictures and `texts` dialogues are made before training, by `workers` processes."""

    scenes: int
    texts: int
    tower: Stage
    language: Stage
    projector: Stage
    finetunes: tuple[FineTune, ...]
    shape: Shape = field(default_factory=Shape)
    notes: float = 0.3  # share of the text-only dialogues that come with written notes to read from
    text_unseen: float = 0.6  # `unseen` of the text-only captions and of the projector stage
    measured_scenes: int = 500
    workers: int = 1
    seed: int = 0


def load(path: Path) -> Recipe:
    """Read a recipe; an unknown or missing field is an error that names it."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidInput(f"Cannot read the recipe {path}: {error.strerror}.") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(f"The recipe {path} is not JSON: {error}.") from error
    try:
        nested: dict[str, Any] = {name: Stage(**data.pop(name)) for name in ("tower", "language", "projector")}
        nested["shape"] = Shape(**data.pop("shape", {}))
        nested["finetunes"] = tuple(
            FineTune(**{**item, "measure_at": tuple(item.get("measure_at", ()))}) for item in data.pop("finetunes")
        )
        return Recipe(**nested, **data)
    except (TypeError, KeyError) as error:
        raise InvalidInput(f"The recipe {path} does not fit: {error}.", "Compare it with recipe.json.") from error


def describe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain data."""
    return dataclasses.asdict(recipe)
