"""Where maps are drawn: tiles, thumbnails, several pictures, frames, tokens without a place."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from seewhen.backbones.grids import ImageGrid
from showing.viewer.browser import Browser
from showing.viewer.page_data import payload_of

TILES = [
    ImageGrid(0, 4 * number, 2, 2, 2, (left, top, left + 0.5, top + 0.5), "tile")
    for number, (left, top) in enumerate([(0.0, 0.0), (0.5, 0.0), (0.0, 0.5), (0.5, 0.5)])
]
ALPHA = """((id, x, y) => {
  const canvas = at(id);
  return canvas.getContext("2d").getImageData(x * canvas.width, y * canvas.height, 1, 1).data[3];
})"""


def shown(browser: Browser, page: Path, grids: list[ImageGrid], values: list[int], images: int = 1) -> str:
    """Open a page whose first word has these values; returns what it says of the map."""
    data: dict[str, Any] = payload_of(page)
    data["images"] = data["images"] * images
    answer = data["answers"][0]
    packed = {"low": 0.0, "high": 1.0, "bytes": base64.b64encode(bytes(values)).decode()}
    answer["maps"]["similarity"] = [packed] * len(answer["tokens"])
    answer["maps"]["grids"] = [asdict(grid) for grid in grids]
    browser.open(page)
    browser.run(f"openPage({json.dumps(data)}); select(0, 0)")
    assert browser.complaints() == []
    return str(browser.run("at('map-note').textContent"))


def test_tiles_are_drawn_and_their_thumbnail_is_not(browser: Browser, page: Path) -> None:
    # The thumbnail is strongest at the top left, the tiles at the bottom right.
    grids = [*TILES, ImageGrid(0, 16, 2, 2, 2, kind="thumbnail")]
    note = shown(browser, page, grids, [0] * 15 + [200] + [255, 0, 0, 0])
    assert note.endswith("strongest at bottom right")
    alpha = [browser.run(f"{ALPHA}('overlay', {x}, {y})") for x, y in ((0.06, 0.06), (0.9, 0.9))]
    assert alpha[0] == pytest.approx(0.84 * 255, abs=2), "dark: the thumbnail's light is not there"
    assert alpha[1] == 0, "the scale is that of the tiles"


def test_a_thumbnail_alone_is_drawn(browser: Browser, page: Path) -> None:
    note = shown(browser, page, [ImageGrid(0, 0, 2, 2, 2, kind="thumbnail")], [255, 0, 0, 0])
    assert note.endswith("strongest at top left")
    assert browser.run(f"{ALPHA}('overlay', 0.2, 0.2)") == 0


def test_every_picture_has_its_own_map(browser: Browser, page: Path) -> None:
    grids = [ImageGrid(0, 0, 2, 2, 2), ImageGrid(1, 4, 2, 2, 3)]  # the second with a separator after each row
    note = shown(browser, page, grids, [0, 0, 0, 100, 0, 0, 9, 0, 255, 9], images=2)
    assert "picture 2, bottom right, row 2 of 2, column 2 of 2" in note
    assert browser.run("document.querySelectorAll('#frames img').length") == 2
    dark, light = browser.run(f"[{ALPHA}('overlay', 0.2, 0.2), {ALPHA}('overlay-1', 0.7, 0.7)]")
    assert dark > 200 and light == 0


def test_of_a_video_the_frame_that_matters_is_drawn(browser: Browser, page: Path) -> None:
    frames = [ImageGrid(0, 4 * number, 2, 2, 2, kind="frame") for number in range(3)]
    note = shown(browser, page, frames, [0] * 8 + [0, 255, 0, 0])
    assert "frame 3 of 3, top right" in note
    assert browser.run(f"[{ALPHA}('overlay', 0.2, 0.7), {ALPHA}('overlay', 0.7, 0.2)]") == [214, 0]


def test_tokens_without_a_place(browser: Browser, page: Path) -> None:
    note = shown(browser, page, [ImageGrid(0, 0, 1, 8, 8, kind="queries")], list(range(8)))
    assert "no place in the picture" in note
    assert browser.run(f"{ALPHA}('overlay', 0.5, 0.5)") == 0
