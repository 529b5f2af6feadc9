"""A case: one answer with its trace, its picture and what the picture really shows.

All figures start from cases. `case_of` makes one from a trace; `tracing.py` makes many from scenes or a run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from seewhen.decoding.naming import name_in
from seewhen.errors import InvalidInput
from seewhen.methods.grammar import label_of
from seewhen.verdicts.lexicon import english

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image
    from torch import Tensor

    from seewhen.backbones.grids import ImageGrid
    from seewhen.decoding.trace import Trace
    from seewhen.scenes import Scene

    Map = NDArray[np.float64]

Kind = Literal["hallucinated", "grounded", "object", "function", "other"]
Box = tuple[float, float, float, float]  # left, top, right, bottom as fractions of the picture

_SPECIAL = re.compile(r"\s*<[^\s<>]+>\s*")  # </s>, <|im_end|>, <end_of_turn>


@dataclass(frozen=True)
class Spoken:
    """A word (or an object's name of several words) that tokens `start` to `end` (exclusive) spell.

    `start` is the step that chose it: its entropies say how sure the model was of the choice.
    """

    text: str
    start: int
    end: int
    kind: Kind
    object: str | None = None


@dataclass(frozen=True)
class Case:
    """Row `row` of `trace`. `truth` are the objects in the picture, `boxes` where they are; None: not known."""

    trace: Trace
    row: int = 0
    image: Image.Image | None = None
    name: str = ""
    question: str = ""
    prompt: str = ""  # the question as the model got it, with its template
    truth: tuple[str, ...] | None = None
    boxes: Mapping[str, tuple[Box, ...]] = field(default_factory=dict)

    @property
    def length(self) -> int:
        """Tokens of the answer, an end-of-sequence token included."""
        return self.trace.lengths[self.row]

    @property
    def method(self) -> str:
        """The name of the method that answered."""
        return name_in(self.trace.method)

    @property
    def layers(self) -> int:
        return self.trace.num_layers

    @cached_property
    def text(self) -> str:
        """The answer."""
        return "".join(self.trace.texts[self.row][step] for step in self._spoken_steps).strip()

    @property
    def _spoken_steps(self) -> list[int]:
        if not self.trace.texts:
            raise InvalidInput("This trace does not know its words.", "Make it with seewhen.generate or --trace.")
        texts = self.trace.texts[self.row]
        return [step for step in range(self.length) if not _SPECIAL.fullmatch(texts[step])]

    @cached_property
    def words(self) -> tuple[Spoken, ...]:
        """The answer word by word; CHAIR says which name an object and, with `truth`, whether it is there."""
        from seewhen.showing.viewer.object_words import named_objects
        from seewhen.showing.viewer.word_risk import group

        steps, texts = self._spoken_steps, self.trace.texts[self.row]
        words = group([texts[step] for step in steps])
        named = {each.start: each for each in named_objects([word.text for word in words], self.truth or ())}
        found: list[Spoken] = []
        at = 0
        while at < len(words):
            # CHAIR takes the racket of "tennis racket" for the object; the choice fell with "tennis".
            each = named.get(at) or (
                named.get(at + 1) if self._begins(words[at].text, named.get(at + 1)) else None
            )
            after = each.end if each else at + 1
            start, end = steps[words[at].start], steps[words[after - 1].end - 1] + 1
            text = "".join(word.text for word in words[at:after]).strip()
            found.append(Spoken(text, start, end, self._kind(text, each), each.name if each else None))
            at = after
        return tuple(found)

    @staticmethod
    def _begins(text: str, named: Any) -> bool:
        """Whether a word is the first of the two of the object's name that the next word was taken for."""
        parts = named.name.split() if named is not None else []
        return len(parts) == 2 and named.end == named.start + 1 and parts[0] == text.strip().lower()

    def _kind(self, text: str, named: Any) -> Kind:
        if named is not None:
            return "object" if self.truth is None else "grounded" if named.present else "hallucinated"
        return "function" if text.lower() in english("grammar") else "other"

    def of_kind(self, *kinds: Kind) -> list[Spoken]:
        """The words of some kinds, in the order of the answer."""
        return [word for word in self.words if word.kind in kinds]

    def find(self, text: str) -> Spoken:
        """A word by its text or its object, whatever its case; `dog#2` is the second."""
        wanted, _, number = text.strip().lower().partition("#")
        if number and not number.isdigit():
            raise InvalidInput(f"{text!r} is not a word.", "Write dog#2 for the second dog of the answer.")
        hits = [w for w in self.words if wanted in (w.text.lower(), w.object)]
        if len(hits) < int(number or 1) or number == "0":
            raise InvalidInput(f"The answer has no word {text!r}.", f"It is: {self.text}")
        return hits[int(number or 1) - 1]

    def tensor(self, name: str) -> Tensor | None:
        """A tensor of the trace, (steps, ...), of this row."""
        whole = self.trace.tensors.get(name)
        return None if whole is None else whole[: self.length, self.row]

    def need(self, name: str) -> Tensor:
        """The same, with an error that says how to get it."""
        found = self.tensor(name)
        if found is None:
            raise InvalidInput(
                f"This trace has no {name!r}.", "Make it with trace=True (`seewhen describe --trace FILE`)."
            )
        return found

    def similarity(self, word: Spoken, layer: int = 0) -> Tensor | None:
        """Similarity of the word's own last token with each image token at a source layer; None if unknown.

        The step that fed the token back in holds it, so an answer cut at its last token has none for it.
        """
        for name, step in (
            (f"cosine_at_{layer}", word.end),
            *((("similarity", word.end - 1),) if layer == 0 else ()),
            (f"relevance_at_{layer}", word.end),
            *((("relevance", word.end),) if layer == self.source_layer else ()),
        ):
            found = self.tensor(name)
            if found is not None and step < len(found):
                return found[step]
        return None

    def used_similarity(self, step: int, layer: int | None = None) -> Tensor | None:
        """What a method sees while it chooses the token of `step`: its query is the token before."""
        layer = self.source_layer if layer is None else layer
        for name in (f"cosine_at_{layer}", f"relevance_at_{layer}"):
            found = self.tensor(name)
            if found is not None:
                return found[step]
        found = self.tensor("relevance") if layer == self.source_layer else None
        return None if found is None else found[step]

    @property
    def source_layer(self) -> int:
        """The layer whose states the method compares."""
        return int((self.trace.method.get("parameters") or {}).get("source_layer", 0))

    @property
    def source_layers(self) -> tuple[int, ...]:
        """The source layers whose similarity the trace holds."""
        known = {int(name[10:]) for name in self.trace.tensors if name.startswith("cosine_at_")}
        known |= {int(name[13:]) for name in self.trace.tensors if name.startswith("relevance_at_")}
        if known.isdisjoint({self.source_layer}) and {"relevance", "similarity"} & set(self.trace.tensors):
            known.add(self.source_layer)
        return tuple(sorted(known))

    @cached_property
    def grids(self) -> tuple[ImageGrid, ...]:
        """The patch grids of the first picture: its tiles, or the whole of it."""
        from seewhen.backbones.grids import placed_grids

        rows = self.trace.grids
        found = placed_grids(rows[self.row] if rows else ())
        if not found:
            raise InvalidInput(
                "This trace does not know where its image tokens lie.",
                "Models whose image tokens have no place (InstructBLIP) have no maps.",
            )
        return found

    def maps(self, weights: Tensor) -> list[tuple[Box, Map]]:
        """Per-token weights as one map for each grid, with the part of the picture it covers."""
        return [(grid.box, grid.map_of(weights).double().numpy()) for grid in self.grids]

    def points_at(self, weights: Tensor) -> tuple[float, float]:
        """The centre of the patch with the highest weight (the first of equals), as fractions of the picture."""
        maps = [values for _, values in self.maps(weights)]
        grid, values = max(zip(self.grids, maps, strict=True), key=lambda part: float(part[1].max()))
        return grid.centre(*divmod(int(values.argmax()), grid.width))

    def chance(self, name: str) -> float:
        """How often a patch drawn at random points at an object of that name."""
        hits = [
            self.inside(grid.centre(row, column), name)
            for grid in self.grids
            for row in range(grid.height)
            for column in range(grid.width)
        ]
        return sum(hits) / len(hits)

    def inside(self, point: tuple[float, float], name: str | None) -> bool:
        """Whether a point lies in a box of an object of that name."""
        x, y = point
        boxes = self.boxes.get(name, ()) if name else ()
        return any(left <= x < right and top <= y < bottom for left, top, right, bottom in boxes)

    def probability(self, word: Spoken) -> float | None:
        """The probability of all of the word's tokens; None where one of them was not recorded."""
        chosen = self.tensor("chosen_log_probs")
        if chosen is not None:
            return math.exp(float(chosen[word.start : word.end].sum()))
        ids, logs = self.tensor("top_ids"), self.tensor("top_log_probs")
        if ids is None or logs is None:
            return None
        total = 0.0
        for step in range(word.start, word.end):
            hit = (ids[step] == self.trace.tokens[step, self.row]).nonzero().flatten()
            if not len(hit):
                return None
            total += float(logs[step, hit[0]])
        return math.exp(total)


def case_of(
    trace: Trace,
    image: Image.Image | None = None,
    *,
    objects: Sequence[str] | None = None,
    row: int = 0,
    name: str = "",
    question: str = "",
) -> Case:
    """A case from a trace. `objects` are those really in the picture, by their COCO names."""
    if not 0 <= row < trace.rows:
        raise InvalidInput(f"The trace has {trace.rows} rows; there is no row {row}.", "They count from 0.")
    truth = None if objects is None else tuple(objects)
    return Case(trace, row, image, name, question, truth=truth)


def scene_case(scene: Scene, question: str = "", prompt: str = "", trace: Trace | None = None) -> Case:
    """A case about a packaged scene, whose picture, objects and boxes are known; still without an answer."""
    from seewhen.scenes import render

    unanswered: Any = trace
    return Case(unanswered, 0, render(scene), scene.image, question, prompt, scene.names, scene.boxes)


def need_truth(cases: Sequence[Case]) -> None:
    """Refuse cases of which nobody knows what their pictures show."""
    if not cases:
        raise InvalidInput("There is no answer to draw.", "")
    if any(case.truth is None for case in cases):
        raise InvalidInput(
            "This figure needs to know which words are hallucinated.",
            "Use --scenes, a run over scenes, or say with --objects what the picture shows.",
        )


def method_names(cases: Sequence[Case]) -> list[str]:
    """The name of each answer's method; with its settings where names alone do not tell them apart."""
    names = [case.method for case in cases]
    return names if len(set(names)) == len(names) else [label_of(case.trace.method) for case in cases]


def entropy_unit(case: Case) -> str:
    """The unit of the trace's entropies, for axis labels."""
    base = case.trace.entropy_base
    return "nats" if abs(base - math.e) < 1e-9 else f"base {base:g}"
