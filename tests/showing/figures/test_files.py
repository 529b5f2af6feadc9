"""Every figure is written as a valid file of every format, with its numbers, the same bytes each time."""

from __future__ import annotations

import itertools
import json
from xml.etree import ElementTree

import pytest
from PIL import Image

from seewhen.benchmarks.base import Metric
from seewhen.errors import InvalidInput
from seewhen.runs.sweep import Point, Sweep, write_sweep
from seewhen.showing.figures import save
from seewhen.showing.figures.catalogue import FIGURES, Wish, figure_named, most_telling


@pytest.fixture(scope="session")
def sweep_folder(tmp_path_factory):
    """What `seewhen sweep` writes, with scores that peak at layer 7, threshold 0.1, contrast 3."""
    grid = {"start_layer": (5, 6, 7), "threshold": (0.05, 0.1), "contrast": (1.0, 3.0)}

    def metrics(start, gate, contrast):
        value = 90 - abs(start - 7) - 20 * abs(gate - 0.1) - abs(contrast - 3)
        return {"accuracy": {"value": value, "low": value - 2, "high": value + 1, "flat": False}}

    points = [
        Point(dict(zip(grid, values, strict=True)), metrics(*values), "run")
        for values in itertools.product(*grid.values())
    ]
    best = max(points, key=lambda p: p.metrics["accuracy"]["value"])
    found = Sweep("cai", Metric("accuracy", "Accuracy", 1), grid, tuple(points), best, "val", "test", {})
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(found, folder)
    return folder


def drawing_of(name, cases, sweep_folder):
    from seewhen.showing.figures.ablations import read_sweep

    entry = FIGURES[name]
    if entry.of == "sweep":
        return entry.draw(read_sweep(sweep_folder), Wish())
    if entry.of == "answers":
        return entry.draw(cases, Wish())
    return entry.draw(most_telling(entry, cases), Wish())


@pytest.mark.parametrize("name", list(FIGURES))
@pytest.mark.slow
def test_each_figure_in_each_format(name, cases, sweep_folder, tmp_path):
    drawing = drawing_of(name, cases, sweep_folder)
    for ending in ("png", "svg", "pdf"):
        path, numbers = save(drawing, tmp_path / f"f.{ending}", dpi=60)
        assert numbers == tmp_path / "f.json"
        if ending == "png":
            with Image.open(path) as image:
                image.verify()
                assert image.width > 100
            drawing.figure.set_layout_engine("none")  # laid out once is enough, and half of the time
        elif ending == "svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            written = path.read_bytes()
            assert written.startswith(b"%PDF") and written.rstrip().endswith(b"%%EOF")
    told = json.loads(numbers.read_text())
    assert told == drawing.data and told["figure"] == name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.json", "f.pdf", "f.png", "f.svg"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_same_answers_give_the_same_bytes(ending, cases, tmp_path):
    for name in ("one", "two"):
        save(FIGURES["fired"].draw(cases, Wish()), tmp_path / f"{name}.{ending}")
    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_drawing_leaves_matplotlib_as_it_was(cases):
    import matplotlib

    before = dict(matplotlib.rcParams)
    FIGURES["fired"].draw(cases, Wish())
    assert dict(matplotlib.rcParams) == before


def test_numbers_go_where_they_are_asked_to(cases, tmp_path):
    drawing = FIGURES["fired"].draw(cases, Wish())
    save(drawing, tmp_path / "a.svg", tmp_path / "deep" / "n.json")
    assert json.loads((tmp_path / "deep" / "n.json").read_text())["figure"] == "fired"
    assert not (tmp_path / "a.json").exists()


def test_wrong_targets_and_names_are_refused(cases, tmp_path):
    drawing = FIGURES["fired"].draw(cases, Wish())
    with pytest.raises(InvalidInput, match="no ending"):
        save(drawing, tmp_path / "figure.gif")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InvalidInput, match="cannot be written"):
        save(drawing, tmp_path / "folder.png")
    with pytest.raises(InvalidInput, match="Did you mean pointing"):
        figure_named("pointin")


def test_the_ablations_show_the_sweep(sweep_folder):
    gate = drawing_of("ablation-gate", [], sweep_folder).data
    assert gate["held"] == {"contrast": 3.0}
    assert [[p["x"] for p in curve] for curve in gate["curves"].values()] == [[5, 6, 7]] * 2
    at_best = gate["curves"]["γ = 0.1"][2]
    assert at_best == {"x": 7, "value": 90, "low": 88, "high": 91, "best": True}
    assert gate["curves"]["γ = 0.05"][0]["value"] == 87
    assert sum(p["best"] for curve in gate["curves"].values() for p in curve) == 1
    contrast = drawing_of("ablation-contrast", [], sweep_folder).data
    assert contrast["held"] == {"start_layer": 7, "threshold": 0.1}
    assert [(p["x"], p["value"]) for p in contrast["curves"]["cai"]] == [(1, 88), (3, 90)]


def test_what_is_no_sweep_is_refused(sweep_folder, tmp_path):
    from seewhen.showing.figures.ablations import ablation_contrast, read_sweep

    with pytest.raises(InvalidInput, match="Make one with"):
        read_sweep(tmp_path)
    (tmp_path / "sweep.json").write_text("[1]")
    with pytest.raises(InvalidInput, match="Make it again"):
        read_sweep(tmp_path)
    narrow = read_sweep(sweep_folder)
    narrow["grid"]["contrast"] = [3.0]
    with pytest.raises(InvalidInput, match="does not vary contrast"):
        ablation_contrast(narrow)
