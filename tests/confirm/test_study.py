"""The study of `confirm`: its page says what its results say, and a run can be made and scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import seewhen
from confirm import captions, page, score
from confirm.settings import Run, first, second

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "confirm" / "results"


@pytest.fixture(scope="module")
def scores():
    return json.loads((RESULTS / "scores.json").read_text("utf-8"))


def test_the_page_says_what_the_results_say(scores):
    text = page.PAGE.read_text("utf-8")
    assert page.filled(text, page.blocks(scores)) == text


def test_the_demonstration_shows_the_same_averages(scores):
    assert json.loads(page.AVERAGES.read_text("utf-8")) == json.loads(json.dumps(page.averages(scores)))


def test_every_run_has_a_name_of_its_own_and_a_method():
    runs = [*first(), *second({"photo": "photo.json", "scenes": "scenes.json"})]
    assert len({run.name for run in runs}) == len(runs)
    assert {seewhen.method(run.method).name for run in first()} >= {"regular", "min-p", "confirm", "locore"}


def test_from_pictures_to_scores(tmp_path):
    items = captions.scenes("shifted", 0, 6)
    writer = captions.Writer("scenes", 3, "cpu")
    mark = "confirm:lexicon=coco,on_denied=mark,verdict=asking"
    for run in (Run("scenes-test", "regular", 0, tokens=24), Run("scenes-test", mark, 0, tokens=24, note="mark")):
        writer.write(run, items, tmp_path / f"{run.name}.jsonl.gz")
    rows = {}
    for path in tmp_path.glob("*.gz"):
        head, *answers = score.lines(path)
        assert len(answers) == 6
        rows[head["run"].split(".")[1]] = [answer["text"] for answer in answers]
    assert rows["regular"] == rows["mark"]  # marking changes nothing
    counts = score.Counts.of("A cat and a dog. A cat.", frozenset({"cat", "bus"}), None).row
    assert counts[:7] == (True, 1, 3, 1, 2, 1, 2)
    assert score.cut("One. Two. Three.", 2) == "One. Two."
