"""Sweeps and the commands: chosen on some images, reported on others; one command, many runs."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from PIL import Image
from typer.testing import CliRunner

import seewhen
from seewhen.benchmarks.base import Metric
from seewhen.cli import app
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.runs.evaluate import Ask, Machine
from seewhen.runs.store import read_run
from seewhen.runs.sweep import Point, Sweep, curves, held_out, parse_grid, sweep, typed_grid, write_sweep


def entry(value):
    return {"accuracy": {"value": value, "low": value - 1, "high": value + 1, "flat": False}}


def made_up(grid, score):
    """A finished sweep with given scores."""
    import itertools

    points = [
        Point(dict(zip(grid, values, strict=True)), entry(score(*values)), "run")
        for values in itertools.product(*grid.values())
    ]
    best = max(points, key=lambda p: p.metrics["accuracy"]["value"])
    metric = Metric("accuracy", "Accuracy", 1)
    return Sweep("cai", metric, grid, tuple(points), best, "val", "test", {"cai": entry(80.0)})


def test_hostile_names_stay_text(tmp_path):
    nasty = "<script>alert(1)</script>"
    found = replace(
        made_up({nasty: (1, 2), "tilt": (nasty,)}, lambda a, b: float(a)), method=nasty, tuned_on=nasty
    )
    found = replace(found, metric=replace(found.metric, title=nasty), test={nasty: entry(1.0)})
    page = next(path for path in write_sweep(found, tmp_path) if path.name == "sweep.html").read_text()
    assert "<script" not in page and page.count("&lt;script&gt;") >= 8


def test_grids_are_read_with_the_papers_symbols():
    grid = parse_grid(["l_s=25,26", "gamma=0.1,none", "tilt=score"])
    assert typed_grid(seewhen.method("cai:attention"), grid) == {
        "start_layer": (25, 26),
        "threshold": (0.1, None),
        "tilt": ("score",),
    }
    assert typed_grid(seewhen.method("pai"), {"gamma": ("1.5", "2")}) == {"gamma": (1.5, 2.0)}
    for wrong in (["gamma"], ["gamma="], ["gamma=1", "gamma=2"], []):
        with pytest.raises(InvalidInput):
            parse_grid(wrong)
    with pytest.raises(InvalidInput, match="threshold is swept twice"):
        typed_grid(seewhen.method("cai"), parse_grid(["gamma=1", "threshold=2"]))


def test_the_papers_two_plots_come_out(tmp_path):
    grid = {"start_layer": (25, 26, 27, 28), "threshold": (0.05, 0.1, 0.15), "contrast": (1.0, 3.0, 5.0)}
    found = made_up(grid, lambda start, gate, c: 90 - abs(start - 27) - 20 * abs(gate - 0.1) - abs(c - 3))
    assert found.best.values == {"start_layer": 27, "threshold": 0.1, "contrast": 3.0}
    (first, layers), (second, contrast) = curves(found)
    assert (first, second) == ("start_layer", "contrast")
    assert layers.count('class="dot"') == 12  # four layers, a curve for each of three thresholds
    assert contrast.count('class="dot"') == 3
    assert layers.count('class="chosen"') == contrast.count('class="chosen"') == 1
    names = {path.name for path in write_sweep(found, tmp_path)}
    assert names == {"sweep.json", "sweep.html", "ablation-start_layer.svg", "ablation-contrast.svg"}
    assert json.loads((tmp_path / "sweep.json").read_text())["best"]["contrast"] == 3.0
    assert "<style>" in (tmp_path / "ablation-contrast.svg").read_text()


def test_settings_that_did_as_well_are_told(tmp_path):
    def lead(scores):
        found = made_up({"start_layer": (1, 2, 3)}, lambda start: scores[start - 1])
        page = next(path for path in write_sweep(found, tmp_path) if path.name == "sweep.html").read_text()
        return page.partition('class="lead">')[2].partition("</p>")[0]

    assert lead([1.0, 3.0, 2.0]) == "Chosen by Accuracy: start_layer = 2."
    told = "did as well to the last digit; of equals the first is taken."
    assert lead([1.0, 3.0, 3.0]) == f"Chosen by Accuracy: start_layer = 2. Another setting {told}"
    assert lead([3.0, 3.0, 3.0]) == f"Chosen by Accuracy: start_layer = 1. 2 other settings {told}"


def test_held_out_images_are_a_fixed_fifth():
    names = [f"COCO_val2014_{i:012d}.jpg" for i in range(3000)]
    share = sum(map(held_out, names)) / 3000
    assert 0.17 < share < 0.23
    assert [held_out(n) for n in names[:8]] == [held_out(n) for n in names[:8]]


@pytest.fixture
def ask(checkpoint):
    return Ask("pope", split="test-random", scenes=5, model=str(checkpoint), max_new_tokens=3, batch=16)


def images_of(folder):
    return {record.image for path in folder.iterdir() for record in read_run(path).records}


def test_a_sweep_of_scenes_tunes_on_val_and_reports_on_test(ask, tmp_path):
    found = sweep(ask, seewhen.method("cai"), {"threshold": (0.1, 5.0)}, tmp_path, Machine())
    assert [p.values["threshold"] for p in found.points] == [0.1, 5.0]
    assert {image.split("_")[0] for image in images_of(tmp_path / "tune")} == {"val"}
    assert {image.split("_")[0] for image in images_of(tmp_path / "test")} == {"test"}
    assert set(found.test) == {"regular", "min-p", "cai:threshold=0.1"}
    fired = [read_run(tmp_path / "tune" / p.run).result["facts"]["fired"] for p in found.points]
    assert fired[0] > 0 == fired[1]  # no entropy is above 5 nats here
    with pytest.raises(InvalidInput, match="for tuning"):
        sweep(replace(ask, split="val"), seewhen.method("cai"), {"threshold": (1,)}, tmp_path, Machine())


def test_settings_that_cannot_run_fail_before_any_run(ask, tmp_path):
    for grid in ({"start_layer": (1, 99)}, {"no_such_field": (1,)}):
        with pytest.raises(SeewhenError):
            sweep(ask, seewhen.method("cai"), grid, tmp_path, Machine())
    assert not list(tmp_path.iterdir())


def pope_files(folder, images=40):
    """POPE in its own form, with pictures, one of them broken."""
    lines = []
    for i in range(images):
        name = f"COCO_val2014_{i:012d}.jpg"
        Image.new("RGB", (32, 24), (i * 6, 80, 120)).save(folder / name)
        for k, thing in enumerate(("dog", "cat")):
            lines.append(
                {
                    "question_id": 2 * i + k + 1,
                    "image": name,
                    "text": f"Is there a {thing} in the image?",
                    "label": "yes" if (i + k) % 2 else "no",
                }
            )
    (folder / "COCO_val2014_000000000003.jpg").write_bytes(b"broken")
    (folder / "coco_pope_random.json").write_text("\n".join(json.dumps(line) for line in lines))


def test_published_files_with_pictures_from_the_command_line(checkpoint, tmp_path):
    pope_files(tmp_path)
    common = ["pope", "--model", str(checkpoint), "--data", str(tmp_path), "--split", "coco-random"]
    common += ["--max-new-tokens", "3", "--device", "cpu"]
    out = tmp_path / "runs"
    outcome = CliRunner().invoke(app, ["eval", *common, "--method", "regular", "--out", str(out), "--json"])
    assert outcome.exit_code == 0, outcome.output
    found = json.loads(outcome.stdout[outcome.stdout.index("[") :])
    assert [entry["method"] for entry in found] == ["regular", "min-p"]
    assert [entry["result"]["failures"] for entry in found] == [2, 2]
    assert "is not an image" in found[0]["result"]["first_failure"]
    swept = tmp_path / "sweep"
    outcome = CliRunner().invoke(
        app, ["sweep", *common, "--no-controls", "--grid", "threshold=0.1,1", "--out", str(swept)]
    )
    assert outcome.exit_code == 0, outcome.output
    tuned, tested = images_of(swept / "tune"), images_of(swept / "test")
    assert tuned and tested and tuned.isdisjoint(tested)
    assert len(tuned) + len(tested) == 40
    assert "had no part in the choice" in outcome.output


def test_missing_pictures_are_one_clear_error(checkpoint, tmp_path):
    pope_files(tmp_path, images=4)
    for picture in tmp_path.glob("*.jpg"):
        picture.unlink()
    command = ["eval", "pope", "--model", str(checkpoint), "--data", str(tmp_path), "--split", "coco-random"]
    outcome = CliRunner().invoke(app, command)
    assert isinstance(outcome.exception, InvalidInput)
    assert "Not one of the 4 pictures is there" in str(outcome.exception)


def test_several_benchmarks_parts_methods_and_decodings(checkpoint, tmp_path):
    command = ["eval", "pope,chair", "--model", str(checkpoint), "--split", "test,shifted", "--scenes", "2"]
    command += ["--method", "cai,opera,vti", "--no-controls", "--greedy", "--seeds", "2", "--limit", "4"]
    outcome = CliRunner().invoke(app, [*command, "--max-new-tokens", "2", "--out", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    assert "opera is left out: opera is a beam search" in outcome.output
    assert "vti is left out" in outcome.output
    names = sorted("_".join(path.name.split("_")[i] for i in (0, 1, 3, 4)) for path in tmp_path.iterdir())
    assert names == sorted(
        f"{bench}_{part}_{rest}"
        for bench in ("pope", "chair")
        for part in ("test", "shifted")
        for rest in ("cai_greedy", "cai_sample", "opera_greedy")
    )
    assert "CAI never fired" not in outcome.output
    again = CliRunner().invoke(app, [*command, "--max-new-tokens", "2", "--out", str(tmp_path)])
    assert again.exit_code == 0  # all finished: nothing runs again
    assert len(list(tmp_path.iterdir())) == 12


def test_contradictions_are_refused(checkpoint, tmp_path):
    for extra, words in (
        (["--method", "regular,pai", "--set", "contrast=3"], "have no parameter 'contrast'"),
        (["--method", "cai,pai", "--run", str(tmp_path / "r")], "--run names one directory"),
        (["--method", "nonsense"], "no method"),
        (["--engine", "cloud", "--scenes", "2"], "no engine"),
        (["--method", "opera", "--seeds", "2", "--scenes", "2"], "does not sample"),
    ):
        outcome = CliRunner().invoke(
            app, ["eval", "pope", "--model", str(checkpoint), *extra, "--out", str(tmp_path)]
        )
        assert isinstance(outcome.exception, SeewhenError), extra
        assert words in str(outcome.exception)
