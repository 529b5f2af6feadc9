"""`seewhen figure` on traces and on scenes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from seewhen.backbones.pictures import picture_file
from seewhen.cli import app
from seewhen.cli.figure import _traced
from seewhen.errors import SeewhenError
from seewhen.showing.figures.catalogue import FIGURES


def call(*arguments):
    return CliRunner().invoke(app, ["figure", *map(str, arguments)])


@pytest.fixture
def saved(cases, tmp_path):
    """A trace on disk, its picture, and the case they are of."""
    cases[0].trace.save(tmp_path / "trace")
    cases[0].image.save(tmp_path / "scene.png")
    return tmp_path / "trace.json", tmp_path / "scene.png", cases[0]


def test_all_figures_are_listed():
    result = call("list")
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == list(FIGURES)


def test_a_figure_of_a_saved_trace(saved, tmp_path):
    trace, image, case = saved
    out, data = tmp_path / "o.pdf", tmp_path / "numbers.json"
    objects, word = ",".join(case.truth), case.truth[0]
    result = call(
        "entropy", "--trace", trace, "--image", image, "--objects", objects, "--words", word, "--out", out,
        "--data", data,
    )  # fmt: skip
    assert result.exit_code == 0, result.exception
    assert result.output.split() == [str(out), str(data)]
    told = json.loads(data.read_text())["words"]
    assert [(w["word"], w["kind"]) for w in told] == [(word, "grounded")]
    assert told[0]["entropy"] == pytest.approx(case.tensor("entropy")[case.find(word).start].tolist(), abs=1e-5)


def test_a_trace_brings_its_own_picture(cases, tmp_path):
    case = cases[0]
    replace(case.trace, pictures=(picture_file(case.image),)).save(tmp_path / "own")
    case.trace.save(tmp_path / "none")
    found = [_traced(tmp_path / f"{name}.json", None, None, 0).image for name in ("own", "none")]
    assert found[0] is not None and found[0].size == case.image.size and found[1] is None


def test_the_numbers_never_overwrite_the_trace(saved):
    trace, image, _ = saved
    before = trace.read_bytes()
    result = call(
        "similarity", "--trace", trace.with_suffix(""), "--image", image, "--out", trace.with_suffix(".png")
    )
    assert isinstance(result.exception, SeewhenError) and "overwrite" in str(result.exception)
    assert trace.read_bytes() == before


def test_a_scene_by_its_name_brings_its_truth(saved, tmp_path):
    trace, _, case = saved
    result = call("pointing", "--trace", trace, "--image", f"scene:{case.name}", "--out", tmp_path / "p.png")
    assert result.exit_code == 0, result.exception
    assert json.loads((tmp_path / "p.json").read_text())["answers"] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nonsense"], "no figure"),
        (["fired", "--out", "a.gif"], "no ending"),
        (["fired", "--trace", "nowhere.json"], "no file"),
        (["fired", "--trace", "a", "--run", "b"], "exclude each other"),
        (["ablation-gate"], "from a sweep"),
        (["fired", "--split", "nowhere"], "no part"),
        (["layers", "--layers", "one"], "not a list of layers"),
        (["fired", "--run", "."], "not a run directory"),
    ],
)
def test_mistakes_are_named(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert isinstance(result.exception, SeewhenError) and words in str(result.exception)


def test_the_case_study_of_scenes_with_one_head(tmp_path):
    out = tmp_path / "case.png"
    result = call(
        "case",
        "--scenes",
        1,
        "--method",
        "cai:start_layer=9",
        "--head",
        1,
        "--layers",
        11,
        "--out",
        out,
        "--dpi",
        50,
    )
    assert result.exit_code == 0, result.exception
    data = json.loads(out.with_suffix(".json").read_text())
    assert data["attention"]["layer"] == 11 and data["attention"]["head"] == 1
    assert data["baseline"]["method"]["method"] == "regular" and data["baseline"]["choice"].strip()
    # Nothing is tilted up to layer 9, so both see the same there.
    assert data["baseline"]["entropy"][:10] == pytest.approx(data["entropy"][:10], abs=1e-3)
