"""All figures by name: what each needs, and how it is drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from seewhen.errors import InvalidInput
from seewhen.registry import nearest
from seewhen.showing.figures import ablations, captions, entropies, failures, firing, maps, measured, studies
from seewhen.showing.figures.cases import Case
from seewhen.showing.figures.style import Drawing


@dataclass(frozen=True)
class Wish:
    """What a user may choose about a figure."""

    words: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    head: int | None = None
    against: Case | None = None  # the same question, or the same words, with another method

    @property
    def word(self) -> str | None:
        return self.words[0] if self.words else None

    @property
    def layer(self) -> int | None:
        return self.layers[0] if self.layers else None


@dataclass(frozen=True)
class Entry:
    """A figure. `of` says what it is made from: one answer, many answers, or a sweep."""

    summary: str
    of: Literal["answer", "answers", "sweep"]
    draw: Callable[[Any, Wish], Drawing]
    method: str = "regular"  # that answers, where answers are made for the figure
    against: str | None = None  # that is compared with it
    interest: Callable[[Case], Any] = lambda case: 0  # of many answers, the highest is drawn


def _hallucinated(case: Case) -> tuple[int, int]:
    return len(case.of_kind("hallucinated")), len(case.of_kind("grounded", "object"))


def _tilted(case: Case) -> tuple[int, int]:
    """Tilted layers of the hallucinated words, then of all words."""
    gate = case.need("gate")
    wrong = sum(int(gate[word.start].sum()) for word in case.of_kind("hallucinated"))
    return wrong, int(gate.sum())


FIGURES: Mapping[str, Entry] = {
    "similarity": Entry(
        "token-image similarity maps for chosen words",
        "answer",
        lambda case, wish: maps.similarity(case, wish.words, layer=wish.layer or 0),
        interest=lambda case: len(case.of_kind("grounded", "object")),
    ),
    "layers": Entry(
        "one word's similarity map at several source layers",
        "answer",
        lambda case, wish: maps.source_layers(case, wish.word, wish.layers),
    ),
    "entropy": Entry(
        "entropy across layers for chosen words",
        "answer",
        lambda case, wish: entropies.entropy(case, wish.words),
        interest=_hallucinated,
    ),
    "case": Entry(
        "case study of one token: entropies, tilted layers, similarity, attention before and after",
        "answer",
        lambda case, wish: studies.case_study(
            case, wish.word, layer=wish.layer, head=wish.head, baseline=wish.against
        ),
        method="cai",
        against="regular",
        interest=_tilted,
    ),
    "caption": Entry(
        "a caption with hallucinated words in red and correct ones in blue, and their maps",
        "answer",
        lambda case, wish: captions.caption([case, wish.against] if wish.against else [case], wish.words),
        against="cai",
        interest=_hallucinated,
    ),
    "median-entropy": Entry(
        "median entropy by layer of hallucinated, grounded and function words",
        "answers",
        lambda cases, wish: entropies.median_entropy(cases),
        method="cai",
    ),
    "fired": Entry(
        "number and share of tokens tilted at each layer",
        "answers",
        lambda cases, wish: firing.fired(cases),
        method="cai",
    ),
    "failure": Entry(
        "confident hallucinations, found by themselves",
        "answers",
        lambda cases, wish: failures.failure(cases),
        method="cai",
    ),
    "pointing": Entry(
        "how often maps point at the object named, by source layer",
        "answers",
        lambda cases, wish: measured.pointing(cases),
    ),
    "auroc": Entry(
        "how well entropy finds hallucinated objects, by layer (AUROC)",
        "answers",
        lambda cases, wish: measured.auroc_by_layer(cases),
    ),
    "calibration": Entry(
        "reliability of the probability of object words",
        "answers",
        lambda cases, wish: measured.calibration(cases),
    ),
    "ablation-gate": Entry(
        "ablation of start layer and threshold, from a sweep",
        "sweep",
        lambda sweep, wish: ablations.ablation_gate(sweep),
    ),
    "ablation-contrast": Entry(
        "ablation of the contrast coefficient, from a sweep",
        "sweep",
        lambda sweep, wish: ablations.ablation_contrast(sweep),
    ),
}


def figure_named(name: str) -> Entry:
    """The figure of that name."""
    if name in FIGURES:
        return FIGURES[name]
    raise InvalidInput(f"There is no figure {name!r}.", f"{nearest(name, FIGURES)}Figures: {', '.join(FIGURES)}.")


def most_telling(entry: Entry, cases: Sequence[Case], index: int | None = None) -> Case:
    """The case of that number, or the one that shows most."""
    if not cases:
        raise InvalidInput("There is no answer to draw.", "")
    if index is None:
        return max(cases, key=entry.interest)
    if not 0 <= index < len(cases):
        raise InvalidInput(f"There is no answer {index}.", f"There are {len(cases)}, counted from 0.")
    return cases[index]
