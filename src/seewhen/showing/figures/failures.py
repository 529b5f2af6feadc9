"""Confident hallucinations: words for things that are not there, of which the model was sure.

An entropy gate cannot catch them. The figure finds them by itself and says how common they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidInput
from seewhen.showing.figures.cases import Case, Spoken, entropy_unit, need_truth
from seewhen.showing.figures.entropies import draw_threshold, entropy_axis, thresholds
from seewhen.showing.figures.maps import show_image
from seewhen.showing.figures.resampling import over_scenes, shares
from seewhen.showing.figures.style import PAGE, RED, Drawing, fold, new_figure, paper_style, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DEFAULT_NATS = 0.1 * math.log(10)  # the paper's threshold, 0.1 to base 10
_DEEP = 0.85  # where a trace has no gate of its own: the paper's start layer


@dataclass(frozen=True)
class Confident:
    """A hallucinated word whose entropy stayed at or below the threshold in every gated layer."""

    case: Case
    word: Spoken
    points: tuple[tuple[int, float], ...]  # (layer read, threshold)
    peak: float  # highest entropy among those layers


def gate_points(case: Case, step: int) -> tuple[tuple[int, float], ...]:
    """The layers an entropy gate reads and its thresholds: the method's own, else the paper's."""
    own = thresholds(case, step)
    if own:
        return tuple(own)
    value = DEFAULT_NATS / math.log(case.trace.entropy_base)
    start = min(math.floor(_DEEP * case.layers), case.layers - 2)
    return tuple((layer, value) for layer in range(start, case.layers - 1))


def confident_hallucinations(cases: Sequence[Case]) -> list[Confident]:
    """All of them, the surest first."""
    found = []
    for case in cases:
        values = case.need("entropy")
        for word in case.of_kind("hallucinated"):
            points = gate_points(case, word.start)
            read = [float(values[word.start, layer]) for layer, _ in points]
            if all(value <= limit for value, (_, limit) in zip(read, points, strict=True)):
                found.append(Confident(case, word, points, max(read)))
    return sorted(found, key=lambda each: (each.peak, each.case.name, each.word.start))


def failure(cases: Sequence[Case], count: int = 2) -> Drawing:
    """The surest of these cases: the picture, and the entropy by layer under its threshold."""
    need_truth(cases)
    found = confident_hallucinations(cases)
    wrong = [len(case.of_kind("hallucinated")) for case in cases]
    if not found:
        raise InvalidInput(
            f"Every one of the {sum(wrong)} hallucinated words in these answers opened the gate.",
            "Use more scenes (--scenes), --split shifted, or a method with a higher threshold.",
        )
    sure = [sum(each.case is case for each in found) for case in cases]
    share = shares({"share": (sure, wrong)})["share"]
    # One word of an answer is enough for a picture of it.
    shown = list({id(each.case): each for each in reversed(found)}.values())[::-1][:count]
    with paper_style():
        figure = new_figure(PAGE, 2.05 * len(shown))
        rows = figure.subplots(len(shown), 3, width_ratios=(1.0, 1.75, 1.25), squeeze=False)
        for (left, middle, right), each in zip(rows, shown, strict=True):
            show_image(left, each.case)
            curve = each.case.need("entropy")[each.word.start].tolist()
            label = f"“{each.word.text}” (not there)"
            middle.plot(range(len(curve)), curve, color=RED, marker="s")
            draw_threshold(middle, each.points)
            _name_threshold(middle, each.points)
            entropy_axis(middle, each.case)
            middle.set_title(label, color=RED)
            right.set_axis_off()
            seen = ", ".join(each.case.truth or ())
            text = f"{fold(each.case.text, 36)}\n\n{fold('In the picture: ' + seen, 36)}"
            right.text(0, 0.98, text, va="top", fontsize=7, transform=right.transAxes, linespacing=1.35)
    data = {
        **over_scenes("failure", cases),
        "unit": entropy_unit(cases[0]),
        "hallucinated_words": sum(wrong),
        "confident": len(found),
        "share": share,
        "cases": [_facts(each) for each in found],
    }
    return Drawing(figure, plain(data))


def _name_threshold(axes: Axes, points: Sequence[tuple[int, float]]) -> None:
    middle = sum(layer for layer, _ in points) / len(points)
    top = max(value for _, value in points)
    axes.annotate("threshold", (middle, top), (0, 3), textcoords="offset points", ha="center", fontsize=7)


def _facts(each: Confident) -> dict[str, Any]:
    return {
        "image": each.case.name,
        "word": each.word.text,
        "step": each.word.start,
        "peak": each.peak,
        "probability": each.case.probability(each.word),
        "entropy": each.case.need("entropy")[each.word.start].tolist(),
        "threshold": [{"layer": layer, "value": value} for layer, value in each.points],
        "answer": each.case.text,
        "truth": list(each.case.truth or ()),
    }
