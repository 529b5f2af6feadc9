"""Time per token by method, and tokens per second as the batch or the image grows."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from seewhen.speed.measure import Cost


def speed(costs: Sequence[Cost], title: str) -> Figure:
    """One panel of bars per way and batch size; a line panel where batch or image tokens vary."""
    batches = sorted({cost.batch for cost in costs})
    lengths = sorted({cost.image_tokens for cost in costs})
    panels = 1 + (len(batches) > 1) + (len(lengths) > 1)
    figure = Figure(
        figsize=(4.6 * panels, 0.9 + 0.32 * max(8, len({c.method for c in costs}))), layout="constrained"
    )
    axes = figure.subplots(1, panels, squeeze=False)[0]
    smallest = [c for c in costs if c.batch == batches[0] and c.image_tokens == lengths[0]]
    _bars(axes[0], smallest)
    place = 1
    if len(batches) > 1:
        _lines(axes[place], [c for c in costs if c.image_tokens == lengths[0]], "batch", "tokens_per_second")
        place += 1
    if len(lengths) > 1:
        _lines(axes[place], [c for c in costs if c.batch == batches[0]], "image_tokens", "ms_per_token")
    figure.suptitle(title, fontsize=10)
    return figure


def _bars(axes: matplotlib.axes.Axes, costs: Sequence[Cost]) -> None:
    names = [f"{cost.method} ({cost.way})" for cost in costs]
    places = range(len(costs))
    axes.barh(places, [cost.ms_per_token for cost in costs], color="#0072b2")
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    if costs:
        axes.axvline(costs[0].floor_ms, color="#d55e00", linestyle="--", label="weights and cache read once")
        axes.legend(fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    for place, cost in zip(places, costs, strict=True):
        ratio = "" if cost.ratio is None else f" {cost.ratio:.2f}x"
        axes.text(cost.ms_per_token, place, ratio, va="center", fontsize=7)
    axes.margins(x=0.15)
    axes.set_xlabel("ms per token")


_WORDS = {
    "batch": "batch size",
    "image_tokens": "image tokens",
    "tokens_per_second": "tokens per second",
    "ms_per_token": "ms per token",
}


def _lines(axes: matplotlib.axes.Axes, costs: Sequence[Cost], along: str, value: str) -> None:
    for name in dict.fromkeys((cost.method, cost.way) for cost in costs):
        own = sorted((getattr(c, along), getattr(c, value)) for c in costs if (c.method, c.way) == name)
        axes.plot(*zip(*own, strict=True), marker="o", markersize=3, label=f"{name[0]} ({name[1]})")
    axes.set_xlabel(_WORDS[along])
    axes.set_ylabel(_WORDS[value])
    axes.set_xscale("log", base=2)
    places = sorted({getattr(cost, along) for cost in costs})
    axes.set_xticks(places, [f"{place:,}" for place in places])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
