"""How all figures look, and how they are written to a file.

Colours are those of Okabe and Ito, which people with any form of colour blindness can tell apart; kinds of
words also differ in line style and marker, so that a black-and-white print still works.
"""

from __future__ import annotations

import importlib.util
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seewhen.atomic import replacing, write
from seewhen.errors import InvalidInput, MissingDependency

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LAST = ("chosen", "threshold", "chance")  # what is no curve comes last in a legend
FORMATS = (".png", ".svg", ".pdf")
COLUMN, PAGE = 3.4, 7.0  # inches: one column of a paper, and both

RED, BLUE, GREY, BLACK = "#d55e00", "#0072b2", "#6e6e6e", "#1a1a1a"
ORANGE, SKY, GREEN, PINK = "#e69f00", "#56b4e9", "#009e73", "#cc79a7"
SERIES = (BLUE, RED, GREEN, PINK, ORANGE, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

KINDS = ("hallucinated", "grounded", "object", "function", "other")
KIND_COLOR = {"hallucinated": RED, "grounded": BLUE, "object": GREEN, "function": GREY, "other": GREY}
KIND_LINE = {"hallucinated": "-", "grounded": "--", "object": "-", "function": ":", "other": ":"}
KIND_MARKER = {"hallucinated": "s", "grounded": "o", "object": "o", "function": "^", "other": "^"}

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 3.5,
    "savefig.facecolor": "white",
    "text.parse_math": False,  # a model may say "$5"
    "svg.hashsalt": "seewhen",
    "pdf.fonttype": 42,  # letters that can be searched and that publishers accept
}


@dataclass(frozen=True)
class Drawing:
    """A figure and the numbers it shows, ready for JSON."""

    figure: Figure
    data: dict[str, Any]


@contextmanager
def paper_style() -> Iterator[None]:
    """All figures are drawn and written inside this."""
    need_matplotlib()
    import matplotlib

    with matplotlib.rc_context(_STYLE):
        yield


def need_matplotlib() -> None:
    """Say how to get it where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingDependency("matplotlib", "figures")


def new_figure(width: float, height: float, **options: Any) -> Figure:
    """A figure without a window or any global state."""
    from matplotlib.figure import Figure

    options.setdefault("layout", "constrained")
    return Figure(figsize=(width, height), **options)


def check_target(out: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed for it."""
    if out.suffix.lower() not in FORMATS:
        raise InvalidInput(
            f"{out.name} has no ending that says how to write it.", f"End it in {', '.join(FORMATS)}."
        )
    above = next(parent for parent in out.absolute().parents if parent.exists())
    if out.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise InvalidInput(f"{out} cannot be written.", "Give a file in a folder you can write to.")


def save(drawing: Drawing, out: str | Path, data: str | Path | None = None, *, dpi: int = 200) -> list[Path]:
    """Write the figure (PNG, SVG or PDF by the ending) and its numbers (by default beside it, as .json).

    The same drawing gives the same bytes: no dates, no random names.
    """
    out = Path(out)
    check_target(out)
    numbers = Path(data) if data is not None else out.with_suffix(".json")
    kind = out.suffix.lower().removeprefix(".")
    blank: Mapping[str, Any] = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with paper_style(), replacing(out) as temporary, warnings.catch_warnings():
        # A letter the font lacks is drawn as a box; that is no reason to fail.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        drawing.figure.savefig(temporary, format=kind, dpi=dpi, metadata=blank[kind])
    write(numbers, json.dumps(drawing.data, ensure_ascii=False, indent=1, allow_nan=False) + "\n")
    return [out, numbers]


def layer_axis(axes: Axes, layers: int, label: str = "layer") -> None:
    """Layers along x, whole numbers, not more than fit."""
    step = max(1, -(-layers // 12))
    axes.set_xticks(range(0, layers, step))
    axes.set_xlim(-0.5, layers - 0.5)
    axes.set_xlabel(label)


def band(axes: Axes, layers: Iterable[float], points: Sequence[Mapping[str, Any]], **look: Any) -> None:
    """A curve of values by layer with their intervals."""
    low, value, high = ([point[name] for point in points] for name in ("low", "value", "high"))
    layers = list(layers)
    axes.fill_between(layers, low, high, color=look["color"], alpha=0.18, lw=0)
    axes.plot(layers, value, **look)


def heat() -> Any:
    """The colours of maps: the picture shows through where a map is low, and high is dark red."""
    import matplotlib
    import numpy as np
    from matplotlib.colors import ListedColormap

    colors = matplotlib.colormaps["YlOrRd"](np.linspace(0.05, 1.0, 256))
    colors[:, 3] = np.linspace(0.0, 0.88, 256)
    return ListedColormap(colors)


def legend_above(figure: Figure, axes: Axes, columns: int = 2) -> None:
    """Above the plot, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda k: labels[k] in LAST)
    handles, labels = [handles[k] for k in order], [labels[k] for k in order]
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, columnspacing=1.2, borderpad=0.1)


def legend_beside(axes: Axes) -> None:
    """To the right of the plot."""
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderpad=0.1)


def panel_letter(axes: Axes, letter: str) -> None:
    """(a), (b), ... before the title of a panel."""
    title = axes.get_title()
    axes.set_title(f"({letter}) {title}".rstrip())


def fold(text: str, width: int) -> str:
    """Break a long line at spaces."""
    import textwrap

    return "\n".join(textwrap.wrap(text, width)) or text


def plain(value: Any, digits: int = 6) -> Any:
    """Numbers as JSON has them: rounded, and null for what is not a number."""
    if isinstance(value, Mapping):
        return {str(key): plain(item, digits) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, digits) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist(), digits)
    if isinstance(value, float):
        return round(value, digits) if value == value and abs(value) != float("inf") else None
    return value
