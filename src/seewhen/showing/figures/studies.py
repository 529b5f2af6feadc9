"""The case study of one token: was the gate open, where did it point, what did the attention become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seewhen.errors import InvalidInput
from seewhen.showing.figures.cases import Case, Spoken, method_names
from seewhen.showing.figures.entropies import draw_threshold, entropy_axis, thresholds
from seewhen.showing.figures.maps import about, map_facts, show_image, show_map
from seewhen.showing.figures.style import (
    BLUE,
    GREY,
    PAGE,
    RED,
    Drawing,
    fold,
    legend_beside,
    new_figure,
    panel_letter,
    paper_style,
    plain,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from torch import Tensor


def case_study(
    case: Case,
    word: str | None = None,
    *,
    layer: int | None = None,
    head: int | None = None,
    baseline: Case | None = None,
) -> Drawing:
    """One token: entropies with the tilted layers, similarity, image attention before and after.

    `layer` is the layer whose attention is shown (the deepest that was tilted); `head` one head of it, if
    the trace has it, else the mean. `baseline` is the same answer fed through another method (`replayed`).
    """
    gate = case.need("gate")
    chosen = case.find(word) if word else _most_tilted(case)
    step = chosen.start
    fired = gate[step].nonzero().flatten().tolist()
    at = _layer(case, fired, layer)
    before, after = (_attention(case, when, step, at, head) for when in ("before", "after"))
    similarity = case.used_similarity(step)
    with paper_style():
        figure = new_figure(PAGE, 4.2)
        halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.05))
        upper, lower = halves
        first, curve = upper.subplots(1, 2, width_ratios=(1, 2.1))
        show_image(first, case, "picture")
        first.text(0.5, 1.05, fold(case.question, 30), ha="center", va="top", fontsize=7, style="italic")
        _entropies(curve, case, chosen, fired, baseline)
        panels = lower.subplots(1, 3)
        show_map(panels[0], case, similarity, _query(case, step), boxes=chosen.object)
        high = max(float(before.max()), float(after.max()))
        for each, weights, when in ((panels[1], before, "before"), (panels[2], after, "after")):
            title = f"attention {when}\n{float(weights.sum()):.2f} on the image"
            scale = show_map(each, case, weights, title, limits=(0.0, high), boxes=chosen.object)
        which = "mean of heads" if head is None else f"head {head}"
        lower.colorbar(scale, ax=panels[1:], shrink=0.9, pad=0.02, label=f"layer {at}, {which}")
        for letter, each in zip("abcde", (first, curve, *panels), strict=True):
            panel_letter(each, letter)
    data = {
        "figure": "case",
        **about(case),
        "word": chosen.text,
        "kind": chosen.kind,
        "step": step,
        "entropy": case.need("entropy")[step].tolist(),
        "threshold": [{"layer": number, "value": value} for number, value in thresholds(case, step)],
        "tilted_layers": fired,
        "baseline": None if baseline is None else _baseline_facts(baseline, step),
        "similarity": map_facts(case, similarity, chosen.object),
        "attention": {
            "layer": at,
            "head": head,
            "before": {"image_share": float(before.sum()), **map_facts(case, before, chosen.object)},
            "after": {"image_share": float(after.sum()), **map_facts(case, after, chosen.object)},
        },
    }
    return Drawing(figure, plain(data))


def _query(case: Case, step: int) -> str:
    """Whose similarity a method looks at in this step: the token's before."""
    if step == 0:
        return "similarity of the prompt's end"
    return f"similarity of “{case.trace.texts[case.row][step - 1].strip()}”\n(the token before)"


def _most_tilted(case: Case) -> Spoken:
    """The object word with most tilted layers, hallucinated ones first; else any such word."""
    gate = case.need("gate")
    tilted = [word for word in case.words if bool(gate[word.start].any())]
    if not tilted:
        raise InvalidInput(
            "No word of this answer was tilted.", "Take another answer (--index), method or threshold."
        )
    order = {"hallucinated": 3, "grounded": 2, "object": 2, "other": 1, "function": 0}
    return max(tilted, key=lambda word: (order[word.kind], int(gate[word.start].sum()), -word.start))


def _layer(case: Case, fired: list[int], layer: int | None) -> int:
    if layer is None:
        return max(fired or case.trace.tilted_layers or case.trace.softmax_layers)
    if layer not in case.trace.softmax_layers:
        raise InvalidInput(f"Layer {layer} has no attention.", f"The model has {case.layers} layers.")
    return layer


def _attention(case: Case, when: str, step: int, layer: int, head: int | None) -> Tensor:
    """Image attention of one layer at one step, of one head or of their mean."""
    if head is None:
        return case.need(f"attention_{when}")[step, layer]
    heads = case.tensor(f"heads_{when}_at_{layer}")
    if heads is None:
        raise InvalidInput(
            f"The trace holds the mean of layer {layer}'s heads only.",
            f"Record them with attach(..., head_layers=({layer},)), or leave --head out.",
        )
    if not 0 <= head < heads.shape[1]:
        raise InvalidInput(f"There is no head {head}.", f"The layer has {heads.shape[1]} heads.")
    return heads[step, head]


def _entropies(axes: Axes, case: Case, word: Spoken, fired: list[int], baseline: Case | None) -> None:
    step = word.start
    values = case.need("entropy")[step].tolist()
    layers = range(len(values))
    name, *rival = method_names([case] if baseline is None else [case, baseline])
    axes.plot(layers, values, color=BLUE, marker="o", mfc="white", label=f"{name}: “{word.text}”")
    if baseline is not None:
        facts = _baseline_facts(baseline, step)
        axes.plot(
            layers, facts["entropy"], color=GREY, ls="--", marker="s", mfc="white", zorder=1,
            label=f"{rival[0]}: “{(facts['choice'] or '?').strip()}”",
        )  # fmt: skip
    draw_threshold(axes, thresholds(case, step))
    # The entropy after layer l - 1 opens the gate of layer l.
    opened = [layer - 1 for layer in fired]
    axes.plot(opened, [values[layer] for layer in opened], ls="", marker="o", ms=5.5, color=RED, label="above it")
    entropy_axis(axes, case)
    top = max(axes.get_ylim()[1], 0.1)
    axes.set_ylim(-0.10 * top, top * 1.02)
    axes.plot(
        fired, [-0.05 * top] * len(fired), ls="", marker="^", ms=5, color=RED, label="layer tilted", clip_on=False
    )
    axes.set_title(f"entropy while “{word.text}” is chosen")
    legend_beside(axes)


def _baseline_facts(baseline: Case, step: int) -> dict[str, Any]:
    texts = baseline.trace.runner_texts
    return {
        "method": baseline.trace.method,
        "entropy": baseline.need("entropy")[step].tolist(),
        "choice": texts[baseline.row][step][0] if texts else None,
    }
