"""What a prompt costs a model of a published shape: tokens, operations, bytes, and time on a GPU.

Operations are counted from the shape. Time is what `seewhen bench` measured on an H200
(`benchmarks/speed/results`): of one more image in a batch's prompt, and of one more row in a decoding step.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seewhen.backbones.shapes import shape_config

RESULTS = Path(__file__).parents[1] / "speed" / "results"
MEASURED, ASKED = RESULTS / "h200-llava-batch.json", RESULTS / "h200-confirm-cost.json"
BYTES = 2  # of a number in bfloat16
BEFORE, AFTER = 34, 18  # tokens before the image, and of a question after it, in LLaVA-1.5's template
BLOCK = 16  # tokens: what a prefix cache keeps or loses as one (vLLM's default on a GPU)


@dataclass(frozen=True)
class Shape:
    """The sizes that operations depend on."""

    width: int
    inner: int
    layers: int
    keys: int  # width of keys, and of values
    vocabulary: int
    image: int  # tokens
    tower_width: int
    tower_inner: int
    tower_layers: int
    patch: int

    @staticmethod
    def of(config: Any) -> Shape:
        """Of a LLaVA."""
        text, vision = config.get_text_config(decoder=True), config.vision_config
        head = text.hidden_size // text.num_attention_heads
        return Shape(
            width=text.hidden_size,
            inner=text.intermediate_size,
            layers=text.num_hidden_layers,
            keys=head * text.num_key_value_heads,
            vocabulary=text.vocab_size,
            image=(vision.image_size // vision.patch_size) ** 2,
            tower_width=vision.hidden_size,
            tower_inner=vision.intermediate_size,
            tower_layers=vision.num_hidden_layers,
            patch=vision.patch_size,
        )

    @property
    def kept_bytes(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.keys * BYTES

    @property
    def weight_bytes(self) -> int:
        """Of the language model without its embedding table, of which a step reads a few rows."""
        layer = 2 * self.width * (self.width + self.keys) + 3 * self.width * self.inner
        return BYTES * (self.layers * layer + self.width * self.vocabulary)

    def tower(self) -> float:
        """Operations of one image in tower and projector."""
        tokens = self.image + 1
        width, inner = self.tower_width, self.tower_inner
        layer = 2 * tokens * (4 * width**2 + 2 * width * inner) + 4 * tokens**2 * width
        patches = 2 * self.image * 3 * self.patch**2 * width
        projector = 2 * self.image * (width * self.width + self.width**2)
        return patches + self.tower_layers * layer + projector

    def read(self, tokens: int, behind: int = 0) -> float:
        """Operations of reading `tokens` after `behind` that are in the cache, and of one row of the head."""
        layer = 2 * (2 * self.width * (self.width + self.keys) + 3 * self.width * self.inner)
        seen = tokens * behind + tokens * (tokens + 1) / 2  # pairs of a token and one it attends to
        return self.layers * (tokens * layer + 4 * self.width * seen) + 2 * self.width * self.vocabulary


@dataclass(frozen=True)
class Clock:
    """Milliseconds on the GPU that was measured."""

    step: float  # a decoding step, before its rows
    row: float  # each row of it
    rate: float  # operations per millisecond of a prompt

    @staticmethod
    def measured(shape: Shape) -> Clock:
        """From 1, 8 and 32 rows of regular decoding: straight lines through the outer two."""
        costs = [c for c in json.loads(MEASURED.read_text())["costs"] if c["method"] == "regular"]
        first, *_, last = sorted(costs, key=lambda cost: cost["batch"])
        more = last["batch"] - first["batch"]
        row = (last["ms_per_token"] - first["ms_per_token"]) / more
        image = (last["prefill_ms"] - first["prefill_ms"]) / more
        operations = shape.tower() + shape.read(first["prompt_tokens"])
        return Clock(first["ms_per_token"] - row, row, operations / image)


def llava() -> Shape:
    """LLaVA-1.5-7B's."""
    return Shape.of(shape_config("llava-1.5-7b"))


def cached(tokens: int) -> int:
    """Of so many tokens that two prompts share, how many a prefix cache serves."""
    return tokens // BLOCK * BLOCK


def question(shape: Shape, clock: Clock, with_cache: bool) -> dict[str, float]:
    """One yes/no question about an image that was read before."""
    prompt = BEFORE + shape.image + AFTER
    kept = cached(BEFORE + shape.image) if with_cache else 0
    operations = shape.read(prompt - kept, kept) + (0 if with_cache else shape.tower())
    return {
        "tokens": prompt,
        "computed": prompt - kept,
        "teraflop": operations / 1e12,
        "written_mb": (prompt - kept) * shape.kept_bytes / 1e6,
        "read_mb": kept * shape.kept_bytes / 1e6,
        "ms": operations / clock.rate,
    }


def asked_ms() -> float:
    """What a question took that our own decoder asked: 3 passes of 8, less an answer without them."""
    measured = json.loads(ASKED.read_text())["measured"][-1]
    questions, judge = (statistics.median(measured["seconds"][name]) for name in ("questions", "judge"))
    return 1e3 * (questions - judge) / 3 / measured["batch"]


def about(shape: Shape, clock: Clock) -> dict[str, Any]:
    """The arithmetic as the page shows it."""
    with_cache, without = (question(shape, clock, each) for each in (True, False))
    return {
        "question_with_cache": with_cache,
        "question_without": without,
        "asked_by_our_decoder_ms": asked_ms(),
        "ratio": without["teraflop"] / with_cache["teraflop"],
        "image_kept_mb": (BEFORE + shape.image) * shape.kept_bytes / 1e6,
        "weights_gb": shape.weight_bytes / 1e9,
        "tower_teraflop": shape.tower() / 1e12,
        "step_ms": clock.step,
        "row_ms": clock.row,
        "teraflop_per_s": clock.rate * 1e3 / 1e12,
    }
