"""Names beside a plot are whole and inside the picture, however long."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as some

from seewhen.runs.plots import Dot, dot_plot, line_plot

SVG = "{http://www.w3.org/2000/svg}"
WIDEST = 7.0  # pixels of a character, on average, at the size of the names
NAMES = some.lists(some.text("abcdefgh_=:/(),. <&0123456789", min_size=1, max_size=160), min_size=1, max_size=8)
CURVE = [(0.5, 80.0, 78.0, 82.0), (0.7, 81.0, 79.0, 83.0)]


def names_of(svg: str) -> tuple[float, float, list[list[tuple[float, float, str]]]]:
    """Width and height of a plot, and of each name its lines: x, y, text."""
    root = ElementTree.fromstring(svg)
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    found = []
    for text in root.iter(f"{SVG}text"):
        if text.attrib.get("class") == "name":
            spans = [(float(s.attrib["x"]), float(s.attrib["y"]), s.text or "") for s in text.iter(f"{SVG}tspan")]
            found.append(spans)
    return width, height, found


def bare(text: str) -> str:
    return re.sub(r"\s", "", text)


@settings(deadline=None, max_examples=60)
@given(NAMES)
def test_names_of_a_dot_plot(names: list[str]) -> None:
    width, height, found = names_of(dot_plot([Dot(name, 50.0, 40.0, 60.0) for name in names], "Accuracy"))
    assert [bare("".join(line for *_, line in lines)) for lines in found] == [bare(name) for name in names]
    ends = {x for lines in found for x, *_ in lines}
    assert len(ends) == 1 and max(ends) < 0.6 * width, "the plot keeps its room"
    for lines in found:
        assert all(x - WIDEST * len(text) >= 0 for x, _, text in lines)
    heights = [y for lines in found for _, y, _ in lines]
    assert heights == sorted(heights) and all(b - a >= 12 for a, b in pairwise(heights))
    assert heights[-1] < height


@settings(deadline=None, max_examples=60)
@given(NAMES.map(lambda names: list(dict.fromkeys(names))))
def test_names_of_a_line_plot(names: list[str]) -> None:
    width, height, found = names_of(line_plot({name: CURVE for name in names}, "start_layer", "Accuracy"))
    assert [bare("".join(line for *_, line in lines)) for lines in found] == [bare(name) for name in names]
    for lines in found:
        assert all(x + WIDEST * len(text) <= width for x, _, text in lines)
    heights = [y for lines in found for _, y, _ in lines]
    assert all(b - a >= 12 for a, b in pairwise(heights))
    assert heights[-1] < height
