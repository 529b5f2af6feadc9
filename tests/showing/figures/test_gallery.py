"""docs/gallery.md tells the committed numbers of its figures, and its script draws what takes runs of its own."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("matplotlib")
gallery = pytest.importorskip("figures.gallery", reason="the benchmarks are not part of this tree")


def test_the_page_tells_the_numbers_of_the_figures() -> None:
    result = json.loads(gallery.RESULT.read_text("utf-8"))
    page = (gallery.DOCS / "gallery.md").read_text("utf-8")
    assert gallery.page(result["figures"], result["scenes"]) == page
    pictures = {path.stem for path in (gallery.DOCS / "images" / "gallery").iterdir()}
    assert pictures == {name for name, *_ in gallery.SECTIONS}


@pytest.mark.slow
def test_the_sweeps_of_the_gallery_are_drawn(tmp_path) -> None:
    drawn = gallery.draw_sweeps(tmp_path, 2)
    assert set(drawn) == {"ablation-gate", "ablation-contrast"}
    assert drawn["ablation-contrast"].data["field"] == "contrast"
