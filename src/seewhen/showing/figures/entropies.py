"""Entropy by layer: of chosen words of one answer, and its median over many answers by kind of word."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidInput
from seewhen.showing.figures.cases import Case, Kind, Spoken, entropy_unit, need_truth
from seewhen.showing.figures.maps import about, show_image
from seewhen.showing.figures.resampling import median, over_scenes
from seewhen.showing.figures.style import (
    BLACK,
    COLUMN,
    KIND_COLOR,
    KIND_LINE,
    KIND_MARKER,
    MARKERS,
    PAGE,
    Drawing,
    band,
    layer_axis,
    legend_above,
    legend_beside,
    new_figure,
    paper_style,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COMPARED: tuple[Kind, ...] = ("hallucinated", "grounded", "function")


def entropy_axis(axes: Axes, case: Case) -> None:
    """The two axes of an entropy plot."""
    layer_axis(axes, case.layers)
    axes.set_ylabel(f"entropy ({entropy_unit(case)})")
    axes.set_ylim(bottom=0)


def thresholds(case: Case, step: int) -> list[tuple[int, float]]:
    """(layer whose entropy is compared, threshold) of a step: the layer before each gated one."""
    known = case.tensor("threshold")
    if known is None:
        return []
    values = known[step].tolist()
    return [(layer - 1, value) for layer, value in enumerate(values) if not math.isnan(value)]


def draw_threshold(
    axes: Axes,
    points: Sequence[tuple[int, float]],
) -> None:
    """A threshold, drawn only where it applies: half a layer to both sides of each point."""
    for number, (layer, value) in enumerate(points):
        axes.plot(
            [layer - 0.5, layer + 0.5], [value, value], color=BLACK, lw=1.1, ls=(0, (3, 1.2)),
            label="threshold" if number == 0 else None, solid_capstyle="butt", zorder=3,
        )  # fmt: skip


def example_words(case: Case) -> list[Spoken]:
    """Up to two words of each kind that the paper compares, no text twice."""
    found: list[Spoken] = []
    for kind in COMPARED:
        distinct = {word.text.lower(): word for word in reversed(case.of_kind(kind))}
        found += list(distinct.values())[::-1][:2]
    return found or list(case.words[:4])


def entropy(case: Case, words: Sequence[str] = ()) -> Drawing:
    """The picture, and the entropy after each layer while each word was chosen."""
    values = case.need("entropy")
    chosen = [case.find(word) for word in words] or example_words(case)
    with paper_style():
        figure = new_figure(PAGE, 2.2)
        left, right = figure.subplots(1, 2, width_ratios=(1, 2))
        show_image(left, case)
        seen: dict[str, int] = {}
        for word in chosen:
            number = seen.setdefault(word.kind, 0)
            seen[word.kind] += 1
            curve = values[word.start].tolist()
            right.plot(
                range(len(curve)), curve, color=KIND_COLOR[word.kind], ls=KIND_LINE[word.kind],
                marker=MARKERS[number % len(MARKERS)], alpha=1.0 if number == 0 else 0.75,
                mfc=KIND_COLOR[word.kind] if number == 0 else "white", label=f"“{word.text}” ({word.kind})",
            )  # fmt: skip
        fixed = {value for word in chosen for _, value in thresholds(case, word.start)}
        if len(fixed) == 1:  # the adaptive rule has another one for every token
            draw_threshold(right, thresholds(case, chosen[0].start))
        entropy_axis(right, case)
        legend_beside(right)
    facts = [
        {
            "word": word.text,
            "kind": word.kind,
            "step": word.start,
            "entropy": values[word.start].tolist(),
            "threshold": [{"layer": layer, "value": value} for layer, value in thresholds(case, word.start)],
        }
        for word in chosen
    ]
    return Drawing(figure, plain({"figure": "entropy", **about(case), "unit": entropy_unit(case), "words": facts}))


def by_kind(cases: Sequence[Case], kind: Kind) -> tuple[list[list[float]], list[int]]:
    """Entropies by layer of all words of a kind, and the number of the case each is from."""
    rows, scene = [], []
    for number, case in enumerate(cases):
        values = case.need("entropy")
        for word in case.of_kind(kind):
            rows.append(values[word.start].tolist())
            scene.append(number)
    return rows, scene


def median_entropy(cases: Sequence[Case]) -> Drawing:
    """Median entropy after each layer of hallucinated, grounded and function words, with the threshold."""
    need_truth(cases)
    first = cases[0]
    curves: dict[str, Any] = {}
    for kind in COMPARED:
        rows, scene = by_kind(cases, kind)
        by_layer = [median([row[layer] for row in rows], scene, len(cases)) for layer in range(first.layers)]
        curves[kind] = {"words": len(rows), "median": by_layer}
    if not curves["hallucinated"]["words"]:
        raise InvalidInput("No word is hallucinated in these answers.", "Use more scenes, or --split shifted.")
    gate = _median_thresholds(cases)
    with paper_style():
        figure = new_figure(COLUMN, 2.6)
        axes = figure.subplots()
        for each, curve in curves.items():
            look = {"color": KIND_COLOR[each], "ls": KIND_LINE[each], "marker": KIND_MARKER[each]}
            points, label = curve["median"], f"{each} (n = {curve['words']})"
            band(axes, range(len(points)), points, **look, label=label)
        draw_threshold(axes, [(point["layer"], point["value"]) for point in gate])
        entropy_axis(axes, first)
        legend_above(figure, axes)
    data = {
        **over_scenes("median-entropy", cases),
        "unit": entropy_unit(first),
        "kinds": curves,
        "threshold": gate,
    }
    return Drawing(figure, plain(data))


def _median_thresholds(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The threshold of each gated layer; for the adaptive rule its median over all tokens."""
    by_layer: dict[int, tuple[list[float], list[int]]] = {}
    for number, case in enumerate(cases):
        for step in range(case.length):
            for layer, value in thresholds(case, step):
                values, scene = by_layer.setdefault(layer, ([], []))
                values.append(value)
                scene.append(number)
    return [{"layer": layer, **median(*by_layer[layer], len(cases))} for layer in sorted(by_layer)]
