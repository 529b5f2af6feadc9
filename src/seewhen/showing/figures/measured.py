"""What the paper shows by example, measured: does relevance point at the object, does entropy find
hallucinations, is the model's confidence worth anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from seewhen.errors import InvalidInput
from seewhen.showing.figures.cases import Case, Spoken, need_truth
from seewhen.showing.figures.entropies import by_kind
from seewhen.showing.figures.resampling import auroc_estimate, drawn_scenes, estimate, over_scenes, shares
from seewhen.showing.figures.style import (
    BLUE,
    COLUMN,
    GREY,
    MARKERS,
    SERIES,
    Drawing,
    band,
    layer_axis,
    legend_above,
    new_figure,
    paper_style,
    plain,
)

Reading = Callable[[Case, Spoken, int], Any]
READINGS: dict[str, tuple[str, Reading]] = {
    "own": ("similarity, the word's own token", lambda case, word, layer: case.similarity(word, layer)),
    "before": (
        "similarity, the token before it (as CAI)",
        lambda case, word, layer: case.used_similarity(word.start, layer),
    ),
    "attention": (
        "attention, mean of heads",
        lambda case, word, layer: _attention(case, word.start, layer),
    ),
}


def _attention(case: Case, step: int, layer: int) -> Any:
    known = case.tensor("attention_before")
    return None if known is None or layer not in case.trace.softmax_layers else known[step, layer]


def pointing_counts(cases: Sequence[Case], reading: str, layer: int) -> tuple[list[int], list[int]]:
    """For each case: rightly named words whose map's highest patch lies in a box of the object, and all."""
    read = READINGS[reading][1]
    hits, words = [], []
    for case in cases:
        hit = number = 0
        for word in case.of_kind("grounded"):
            weights = read(case, word, layer)
            if weights is None or word.object not in case.boxes:
                continue
            number += 1
            hit += case.inside(case.points_at(weights), word.object)
        hits.append(hit)
        words.append(number)
    return hits, words


def pointing(cases: Sequence[Case]) -> Drawing:
    """Pointing accuracy against ground-truth boxes by source layer, beside chance."""
    need_truth(cases)
    if not any(case.boxes for case in cases):
        raise InvalidInput("Nothing is known about where the objects are.", "Use --scenes or a run over scenes.")
    curves: dict[str, Any] = {}
    for name, (title, _) in READINGS.items():
        counted = {layer: pointing_counts(cases, name, layer) for layer in range(cases[0].layers)}
        known = {layer: each for layer, each in counted.items() if sum(each[1])}
        if known:
            found = shares({str(layer): each for layer, each in known.items()})
            curves[name] = {
                "title": title,
                "layers": [{"layer": la, "words": sum(known[la][1]), **found[str(la)]} for la in known],
            }
    if not curves:
        raise InvalidInput("The traces hold no map to point with.", "Make them with trace=True.")
    chance = _chance(cases)
    with paper_style():
        figure = new_figure(COLUMN, 2.7)
        axes = figure.subplots()
        for number, curve in enumerate(curves.values()):
            points = curve["layers"]
            look = {"color": SERIES[number], "marker": MARKERS[number], "label": curve["title"]}
            band(axes, (point["layer"] for point in points), points, **look)
        axes.axhline(chance["value"], color=GREY, ls=":", lw=1.1, label="chance")
        layer_axis(axes, cases[0].layers, "source layer")
        axes.set_ylim(0, 1)
        axes.set_ylabel("pointing accuracy")
        legend_above(figure, axes, 1)
    data = {
        **over_scenes("pointing", cases),
        "chance": chance,
        "curves": curves,
    }
    return Drawing(figure, plain(data))


def _chance(cases: Sequence[Case]) -> dict[str, float]:
    named = [[w for w in case.of_kind("grounded") if w.object in case.boxes] for case in cases]
    areas = [
        sum(case.chance(word.object or "") for word in words) for case, words in zip(cases, named, strict=True)
    ]
    return shares({"chance": (areas, [len(words) for words in named])})["chance"]


def auroc_by_layer(cases: Sequence[Case]) -> Drawing:
    """How well the entropy after each layer tells hallucinated from rightly named objects."""
    need_truth(cases)
    wrong, of_wrong = by_kind(cases, "hallucinated")
    right, of_right = by_kind(cases, "grounded")
    if not wrong or not right:
        raise InvalidInput(
            f"{len(wrong)} hallucinated and {len(right)} correct words are too few to compare.",
            "Use more scenes, or --split shifted.",
        )
    labels, scene = [True] * len(wrong) + [False] * len(right), of_wrong + of_right
    layers = [
        {
            "layer": layer,
            **auroc_estimate([row[layer] for row in wrong + right], labels, scene, len(cases)),
        }
        for layer in range(cases[0].layers)
    ]
    unsure = _improbability(cases)
    with paper_style():
        figure = new_figure(COLUMN, 2.7)
        axes = figure.subplots()
        band(axes, (point["layer"] for point in layers), layers, color=BLUE, marker="o", label="entropy")
        if unsure is not None:
            axes.axhline(unsure["value"], color=SERIES[1], ls="--", lw=1.1, label="1 − probability")
        axes.axhline(0.5, color=GREY, ls=":", lw=1.1, label="chance")
        layer_axis(axes, cases[0].layers)
        axes.set_ylim(min(0.4, axes.get_ylim()[0]), 1)
        axes.set_ylabel("AUROC, hallucinated objects")
        legend_above(figure, axes, 3)
    data = {
        **over_scenes("auroc", cases),
        "hallucinated_words": len(wrong),
        "correct_words": len(right),
        "layers": layers,
        "improbability": unsure,
    }
    return Drawing(figure, plain(data))


def confidences(cases: Sequence[Case]) -> tuple[list[float], list[bool], list[int], int]:
    """Probability, whether it is there, and number of the case, of each named object; how many are unknown."""
    chances, there, scene, unknown = [], [], [], 0
    for number, case in enumerate(cases):
        for word in case.of_kind("hallucinated", "grounded"):
            chance = case.probability(word)
            if chance is None:
                unknown += 1
                continue
            chances.append(chance)
            there.append(word.kind == "grounded")
            scene.append(number)
    return chances, there, scene, unknown


def _improbability(cases: Sequence[Case]) -> dict[str, float] | None:
    chances, there, scene, unknown = confidences(cases)
    if unknown or not chances:
        return None
    return auroc_estimate([-c for c in chances], [not t for t in there], scene, len(cases))


def calibration(cases: Sequence[Case]) -> Drawing:
    """Reliability: of the object words said with a probability in a bin, how many are really there.

    Bins are tenths; a bin with few words is joined with the next, because most words are said with high
    probability.
    """
    need_truth(cases)
    chances, there, scene, unknown = confidences(cases)
    if not chances:
        raise InvalidInput("No object is named whose probability is known.", "Use more scenes.")
    groups = tenths(np.asarray(chances))
    p, t, of = np.asarray(chances), np.asarray(there, dtype=float), np.asarray(scene)
    found = shares({str(k): _per_scene(t[group], of[group], len(cases)) for k, group in enumerate(groups)})
    facts: list[dict[str, Any]] = [
        {
            "words": len(group),
            "from": float(p[group].min()),
            "to": float(p[group].max()),
            "confidence": float(p[group].mean()),
            "accuracy": found[str(k)],
        }
        for k, group in enumerate(groups)
    ]
    error = _calibration_error(p, t, of, groups, len(cases))
    with paper_style():
        figure = new_figure(2.9, 3.1)
        top, axes = figure.subplots(2, 1, height_ratios=(1, 4), sharex=True)
        top.hist(chances, bins=[k / 20 for k in range(21)], color=GREY)
        top.set_ylabel("words")
        axes.plot([0, 1], [0, 1], color=GREY, ls=":", lw=1.1, label="perfect")
        x, y = [f["confidence"] for f in facts], [f["accuracy"]["value"] for f in facts]
        spread = [
            [f["accuracy"]["value"] - f["accuracy"]["low"] for f in facts],
            [f["accuracy"]["high"] - f["accuracy"]["value"] for f in facts],
        ]
        axes.errorbar(x, y, yerr=np.maximum(spread, 0), color=BLUE, marker="o", capsize=2, elinewidth=0.9)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("probability of the object word")
        axes.set_ylabel("share really in the picture")
        axes.annotate(f"calibration error {error['value']:.3f}", (0.03, 0.93), xycoords="axes fraction")
    data = {
        **over_scenes("calibration", cases),
        "words": len(chances),
        "without_probability": unknown,
        "calibration_error": error,
        "bins": facts,
    }
    return Drawing(figure, plain(data))


def tenths(chances: np.ndarray, fewest: int = 10) -> list[np.ndarray]:
    """Indices by tenth of probability, joined from below until a group has `fewest`; the rest goes to the last."""
    groups: list[list[int]] = []
    waiting: list[int] = []
    for tenth in range(10):
        low, high = tenth / 10, (tenth + 1) / 10
        waiting += np.flatnonzero((chances >= low) & ((chances < high) | (tenth == 9))).tolist()
        if len(waiting) >= fewest:
            groups.append(waiting)
            waiting = []
    if waiting:
        groups = [*groups[:-1], [*groups[-1], *waiting]] if groups else [waiting]
    return [np.asarray(group) for group in groups]


def _per_scene(values: np.ndarray, scene: np.ndarray, scenes: int) -> tuple[list[float], list[float]]:
    """Sums and numbers of `values` by scene."""
    sums = np.bincount(scene, weights=values, minlength=scenes)
    return sums.tolist(), np.bincount(scene, minlength=scenes).astype(float).tolist()


def _calibration_error(
    p: np.ndarray, t: np.ndarray, scene: np.ndarray, groups: list[np.ndarray], scenes: int
) -> dict[str, float]:
    """Mean distance of confidence and accuracy over bins, weighted by their words (ECE).

    Noise alone makes it positive, so its interval does not reach zero even for a perfect model.
    """
    gap = np.zeros((len(groups), scenes))
    for k, group in enumerate(groups):
        np.add.at(gap[k], scene[group], p[group] - t[group])
    number = np.bincount(scene, minlength=scenes).astype(float)
    weights = drawn_scenes(scenes)
    drawn = np.abs(weights @ gap.T).sum(axis=1) / np.maximum(weights @ number, 1)
    return estimate(float(np.abs(gap.sum(axis=1)).sum() / number.sum()), drawn)
