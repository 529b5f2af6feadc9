"""The long caption: hallucinated words in red, correct ones in blue, and where each of them looked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from seewhen.showing.figures.cases import Case, Spoken, method_names, need_truth
from seewhen.showing.figures.maps import about, chosen_words, map_facts, show_image, show_map
from seewhen.showing.figures.style import BLACK, KIND_COLOR, PAGE, Drawing, fold, new_figure, paper_style, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LINE = 0.175  # inches
_SIZE = 8.5
_MAPS = 6


def caption(cases: Sequence[Case], words: Sequence[str] = ()) -> Drawing:
    """Answers to one question about one picture, by one method or several; maps are those of the first."""
    need_truth(cases)
    first = cases[0]
    chosen = chosen_words(first, words, most=_MAPS)
    with paper_style():
        figure = _draw(cases, chosen)
    answers = [
        {
            **about(case),
            "hallucinated": [word.text for word in case.of_kind("hallucinated")],
            "grounded": [word.text for word in case.of_kind("grounded")],
        }
        for case in cases
    ]
    facts = [
        {
            "word": word.text,
            "kind": word.kind,
            "similarity": map_facts(first, first.similarity(word), word.object),
            "attention": map_facts(first, _attention(first, word), word.object),
        }
        for word in chosen
    ]
    data = {"figure": "caption", "answers": answers, "attention_layer": _shown_layer(first), "words": facts}
    return Drawing(figure, plain(data))


def _shown_layer(case: Case) -> int:
    return max(case.trace.tilted_layers or case.trace.softmax_layers)


def _attention(case: Case, word: Spoken) -> Any:
    """Image attention of the deepest layer that may be tilted, while the word was chosen."""
    attention = case.tensor("attention_after")
    return None if attention is None else attention[word.start, _shown_layer(case)]


def _draw(cases: Sequence[Case], chosen: Sequence[Spoken]) -> Figure:
    first = cases[0]
    picture, gap = 1.7, 0.2
    room = PAGE - picture - gap
    measure = _ruler()
    laid = [_lines(case, room, measure) for case in cases]
    text = sum(0.24 + _LINE * len(lines) + 0.1 for lines in laid)
    question = fold(first.question, 30)
    side = picture + 0.16 * (1 + question.count("\n")) + 0.1
    above = max(text, side)
    tile = min(1.25, (PAGE - 0.75) / len(chosen) - 0.08)
    height = above + 2 * (tile + 0.06) + 0.32
    figure = new_figure(PAGE, height, layout="none")

    def place(left: float, top: float, width: float, tall: float) -> Axes:
        return figure.add_axes((left / PAGE, 1 - (top + tall) / height, width / PAGE, tall / height))

    show_image(place(0, 0, picture, picture), first)
    if question:
        figure.text(0.004, 1 - (picture + 0.06) / height, question, va="top", fontsize=7.5, style="italic")
    top = 0.0
    for method, case, lines in zip(method_names(cases), cases, laid, strict=True):
        _write(figure, method, case, lines, (picture + gap, top), height)
        top += 0.24 + _LINE * len(lines) + 0.1
    below = above + 0.24
    for row, name in enumerate(("similarity", f"attention\nlayer {_shown_layer(first)}")):
        middle = below + row * (tile + 0.06) + tile / 2
        figure.text(0.004, 1 - middle / height, name, va="center", fontsize=7.5)
    for number, word in enumerate(chosen):
        for row, weights in enumerate((first.similarity(word), _attention(first, word))):
            axes = place(0.75 + number * (tile + 0.08), below + row * (tile + 0.06), tile, tile)
            show_map(axes, first, weights, f"“{word.text}”" if row == 0 else "", boxes=word.object)
            axes.title.set_color(KIND_COLOR[word.kind])
    return figure


def _ruler() -> Any:
    """Width in inches of a text, plain or bold."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    def width(text: str, bold: bool) -> float:
        font = FontProperties(family="DejaVu Sans", size=_SIZE, weight="bold" if bold else "normal")
        # A space has no outline; between two letters it has its width.
        both, pair = (TextPath((0, 0), t, prop=font).get_extents().x1 for t in (f"n{text}n", "nn"))
        return float(both - pair) / 72

    return width


def _lines(case: Case, room: float, measure: Any) -> list[list[tuple[float, str, Spoken]]]:
    """The answer broken into lines of (x, text, word); a punctuation mark stays with its word."""
    lines: list[list[tuple[float, str, Spoken]]] = [[]]
    x = 0.0
    texts = case.trace.texts[case.row]
    for number, word in enumerate(case.words):
        shown = word.text
        bold = word.kind in ("hallucinated", "grounded")
        spaced = number > 0 and texts[word.start][:1].isspace()
        space = measure(" ", False) if spaced and lines[-1] else 0.0
        width = measure(shown, bold)
        # Leave room for the mark that may follow.
        if lines[-1] and spaced and x + space + width + 0.06 > room:
            lines.append([])
            x = space = 0.0
        lines[-1].append((x + space, shown, word))
        x += space + width
    return lines


def _write(
    figure: Figure, method: str, case: Case, lines: Any, corner: tuple[float, float], height: float
) -> None:
    left, top = corner
    wrong, right = (len(case.of_kind(kind)) for kind in ("hallucinated", "grounded"))
    head = f"{method}: {wrong} hallucinated, {right} correct"
    figure.text(left / PAGE, 1 - (top + 0.03) / height, head, va="top", fontsize=8, color="#555555")
    for number, line in enumerate(lines):
        y = 1 - (top + 0.24 + _LINE * (number + 0.72)) / height
        for x, text, word in line:
            marked = word.kind in ("hallucinated", "grounded")
            figure.text(
                (left + x) / PAGE, y, text, va="baseline", fontsize=_SIZE,
                color=KIND_COLOR[word.kind] if marked else BLACK, weight="bold" if marked else "normal",
            )  # fmt: skip
