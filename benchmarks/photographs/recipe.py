"""Every number of a training run."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput


@dataclass(frozen=True)
class Stage:
    """One stretch of training: AdamW, warm-up, cosine decay that ends with the steps or with the minutes."""

    steps: int
    batch: int
    rate: float
    minutes: float = 9.0


@dataclass(frozen=True)
class Tower(Stage):
    """`layer_decay`: each layer below the last learns that much slower. `crop`: least share of a side kept.
    `distil`: weight of what the teacher sees, beside the objects; 0 is without a teacher."""

    layer_decay: float = 0.75
    crop: float = 0.6
    sharpness: float = 4.0  # of the pooling over patches: 0 is the mean, large is the largest
    distil: float = 1.0


@dataclass(frozen=True)
class Projector(Stage):
    """`align`: weight of the loss that brings patches near the word of what they show."""

    align: float = 1.0


@dataclass(frozen=True)
class FineTune(Stage):
    """LoRA with the projector. Shares of the batch: descriptions, text without image; the rest are questions."""

    rank: int = 32
    describe: float = 0.4
    text_only: float = 0.1
    align: float = 0.1
    questions: int = 6  # turns in one conversation about one photograph
    texts: int = 960  # prompts that the language model answers by itself first, and the length of its answers
    text_tokens: int = 160


@dataclass(frozen=True)
class Recipe:
    """A run."""

    tower: Tower = field(default_factory=lambda: Tower(3600, 384, 3e-4, 4.5))
    projector: Projector = field(default_factory=lambda: Projector(400, 160, 5e-4, 1.2))
    finetune: FineTune = field(default_factory=lambda: FineTune(1400, 256, 6e-4, 5.0))
    seed: int = 0
    check_every: int = 700  # steps between looks at the validation photographs
    checked: int = 300  # photographs the talking model is asked about then; the tower's precision is over all


_STAGES = {"tower": Tower, "projector": Projector, "finetune": FineTune}


def load(path: Path) -> Recipe:
    """Read a recipe; what it leaves out stays as above, an unknown field is an error."""
    try:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise InvalidInput(f"Cannot read the recipe {path}: {error}.") from error
    base = Recipe()
    try:
        for name, kind in _STAGES.items():
            if name in data:
                data[name] = kind(**{**dataclasses.asdict(getattr(base, name)), **data[name]})
        return dataclasses.replace(base, **data)
    except TypeError as error:
        raise InvalidInput(f"The recipe {path} does not fit: {error}.", "Compare it with recipe.json.") from error
