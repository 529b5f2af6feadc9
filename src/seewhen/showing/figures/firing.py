"""How many tokens were tilted at each layer, and how large a share of all tokens that is."""

from __future__ import annotations

from collections.abc import Sequence

from seewhen.errors import InvalidInput
from seewhen.showing.figures.cases import Case
from seewhen.showing.figures.resampling import over_scenes, shares
from seewhen.showing.figures.style import BLACK, BLUE, COLUMN, Drawing, new_figure, paper_style, plain


def fired(cases: Sequence[Case]) -> Drawing:
    """Bars: tokens tilted at each layer; the share of all generated tokens is written above."""
    layers = tuple(sorted({layer for case in cases for layer in case.trace.tilted_layers}))
    if not layers:
        raise InvalidInput("This method tilts no layer.", "Use cai or pai.")
    counts = [case.need("gate").sum(dim=0).tolist() for case in cases]
    tokens = [case.length for case in cases]
    total = sum(tokens)
    ratios = shares({str(layer): ([row[layer] for row in counts], tokens) for layer in layers})
    anywhere = [int(case.need("gate").any(dim=-1).sum()) for case in cases]
    overall = shares({"any": (anywhere, tokens)})["any"]
    numbers = [sum(row[layer] for row in counts) for layer in layers]
    with paper_style():
        figure = new_figure(max(2.2, min(COLUMN, 0.55 * len(layers) + 1.0)), 2.3)
        axes = figure.subplots()
        places = range(len(layers))
        axes.bar(places, numbers, width=0.62, color=BLUE)
        known = [ratios[str(layer)] for layer in layers]
        spread = [
            [max(0.0, (each["value"] - each["low"]) * total) for each in known],
            [max(0.0, (each["high"] - each["value"]) * total) for each in known],
        ]
        axes.errorbar(places, numbers, yerr=spread, fmt="none", ecolor=BLACK, elinewidth=0.9, capsize=2)
        for place, (layer, number, more) in enumerate(zip(layers, numbers, spread[1], strict=True)):
            share = f"{100 * ratios[str(layer)]['value']:.1f}%"
            axes.annotate(
                share, (place, number + more), (0, 2), textcoords="offset points", ha="center", fontsize=7
            )
        axes.set_xticks(list(places), [str(layer) for layer in layers])
        axes.set_xlabel("layer")
        axes.set_ylabel(f"tilted tokens (of {total})")
        axes.margins(y=0.12)
    data = {
        **over_scenes("fired", cases),
        "tokens": total,
        "layers": [
            {"layer": layer, "tokens": number, "share": ratios[str(layer)]}
            for layer, number in zip(layers, numbers, strict=True)
        ],
        "in_any_layer": {"tokens": sum(anywhere), "share": overall},
    }
    return Drawing(figure, plain(data))
