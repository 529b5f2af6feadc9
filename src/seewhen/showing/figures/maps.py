"""Maps over the picture: token-image similarity for chosen words, and at several source layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidInput
from seewhen.showing.figures.cases import Case, Spoken
from seewhen.showing.figures.style import BLUE, KIND_COLOR, PAGE, Drawing, heat, new_figure, paper_style, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor

MOST_WORDS = 4


def show_image(axes: Axes, case: Case, title: str = "") -> None:
    """The picture alone; an empty frame where it is not at hand."""
    axes.set_axis_off()
    axes.set_title(title)
    if case.image is not None:
        axes.imshow(case.image.convert("RGB"), extent=(0, 1, 1, 0), aspect=_aspect(case))
    else:
        _frame(axes, "no picture given")


def _frame(axes: Axes, text: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, lw=0.7, ec="#999999"))
    axes.text(0.5, 0.5, text, ha="center", va="center", color="#777777", fontsize=7)
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    axes.set_aspect(1)


def _aspect(case: Case) -> float:
    return 1.0 if case.image is None else case.image.height / case.image.width


def show_map(
    axes: Axes,
    case: Case,
    weights: Tensor | None,
    title: str = "",
    *,
    limits: tuple[float, float] | None = None,
    boxes: str | None = None,
) -> Any:
    """Weights of the image tokens over the picture in grey; red is high. Returns the colour scale.

    `boxes` outlines the objects of that name. Patches are drawn as they are: smoothing would invent detail.
    """
    axes.set_axis_off()
    axes.set_title(title)
    if weights is None:
        _frame(axes, "not recorded")
        return None
    if case.image is not None:
        # Paler than it is: the colours of the map must stand out.
        axes.imshow(case.image.convert("L"), cmap="gray", vmin=-160, vmax=255, extent=(0, 1, 1, 0))
    parts = case.maps(weights)
    low, high = limits or (min(m.min() for _, m in parts), max(m.max() for _, m in parts))
    drawn = None
    for (left, top, right, bottom), values in parts:
        drawn = axes.imshow(
            values,
            extent=(left, right, bottom, top),
            cmap=heat(),
            vmin=low,
            vmax=high if high > low else low + 1.0,
            interpolation="nearest",
        )
    axes.set_xlim(0, 1)
    axes.set_ylim(1, 0)
    axes.set_aspect(_aspect(case))
    if boxes is not None:
        outline(axes, case, boxes)
    return drawn


def outline(axes: Axes, case: Case, name: str) -> None:
    """Boxes around the objects of that name."""
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import Normal, Stroke

    for left, top, right, bottom in case.boxes.get(name, ()):
        box = Rectangle((left, top), right - left, bottom - top, fill=False, lw=1.1, ec=BLUE)
        box.set_path_effects([Stroke(linewidth=2.4, foreground="white"), Normal()])
        axes.add_patch(box)


def chosen_words(case: Case, words: Sequence[str] = (), most: int = MOST_WORDS) -> list[Spoken]:
    """The words asked for; else the objects the answer names, hallucinated ones first, in its order."""
    if words:
        return [case.find(word) for word in words]
    objects = case.of_kind("hallucinated") + case.of_kind("grounded", "object")
    distinct = list({word.object: word for word in reversed(objects)}.values())[::-1][:most]
    if not distinct:
        raise InvalidInput("The answer names no object.", f"Choose --words from: {case.text}")
    return sorted(distinct, key=lambda word: word.start)


def map_facts(case: Case, weights: Tensor | None, name: str | None) -> dict[str, Any]:
    """The map's numbers: values, range, where it points, and whether that is in a box of the object."""
    if weights is None:
        return {"maps": None}
    point = case.points_at(weights)
    parts = case.maps(weights)
    return {
        "low": min(m.min() for _, m in parts),
        "high": max(m.max() for _, m in parts),
        "points_at": point,
        "inside_box": case.inside(point, name) if name in case.boxes else None,
        "maps": [{"box": box, "values": plain(values, 4)} for box, values in parts],
    }


def about(case: Case) -> dict[str, Any]:
    """What every figure of one answer says about it."""
    return {
        "image": case.name,
        "question": case.question,
        "answer": case.text,
        "method": case.trace.method,
        "model": case.trace.model,
        "truth": None if case.truth is None else list(case.truth),
    }


def similarity(case: Case, words: Sequence[str] = (), *, layer: int = 0) -> Drawing:
    """The picture, and for each word the similarity of its own token with every image token."""
    chosen = chosen_words(case, words)
    maps = [case.similarity(word, layer) for word in chosen]
    with paper_style():
        panels = 1 + len(chosen)
        width = min(PAGE, 1.5 * panels)
        figure = new_figure(width, width / panels * _aspect(case) + 0.18)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        show_image(axes[0], case, "picture")
        for each, word, weights in zip(axes[1:], chosen, maps, strict=True):
            show_map(each, case, weights, f"“{word.text}”", boxes=word.object)
            each.title.set_color(KIND_COLOR[word.kind])
    facts = [
        {"word": w.text, "kind": w.kind, "object": w.object, "step": w.start, **map_facts(case, m, w.object)}
        for w, m in zip(chosen, maps, strict=True)
    ]
    return Drawing(figure, plain({"figure": "similarity", **about(case), "layer": layer, "words": facts}))


def source_layers(case: Case, word: str | None = None, layers: Sequence[int] = ()) -> Drawing:
    """One word's similarity map read at several source layers."""
    chosen = case.find(word) if word else _largest_grounded(case)
    known = case.source_layers
    wanted = tuple(layers) or tuple(known[round(k * (len(known) - 1) / 3)] for k in range(4) if known)
    wanted = tuple(dict.fromkeys(wanted))
    missing = [layer for layer in wanted if layer not in known]
    if missing or not wanted:
        raise InvalidInput(
            f"The trace has no similarity at layer {', '.join(map(str, missing)) or '0'}.",
            f"It has: {', '.join(map(str, known)) or 'none'}. Record others with relevance_layers=.",
        )
    maps = [case.similarity(chosen, layer) for layer in wanted]
    with paper_style():
        panels = 1 + len(wanted)
        figure = new_figure(PAGE, PAGE / panels * _aspect(case) + 0.18)
        axes = figure.subplots(1, panels, squeeze=False)[0]
        show_image(axes[0], case, f"“{chosen.text}”")
        axes[0].title.set_color(KIND_COLOR[chosen.kind])
        for each, layer, weights in zip(axes[1:], wanted, maps, strict=True):
            show_map(each, case, weights, f"layer {layer}", boxes=chosen.object)
    facts = [{"layer": n, **map_facts(case, m, chosen.object)} for n, m in zip(wanted, maps, strict=True)]
    data = {"figure": "layers", **about(case), "word": chosen.text, "kind": chosen.kind, "layers": facts}
    return Drawing(figure, plain(data))


def _largest_grounded(case: Case) -> Spoken:
    """The object that fills most of the picture among those named rightly; else the first one named."""

    def area(word: Spoken) -> float:
        boxes = case.boxes.get(word.object or "", ())
        return sum((right - left) * (bottom - top) for left, top, right, bottom in boxes)

    named = case.of_kind("grounded") or case.of_kind("object", "hallucinated")
    if not named:
        raise InvalidInput("The answer names no object.", f"Choose one of its words: {case.text}")
    return max(named, key=area)
