"""The study of `confirm`: its page says what its results say, and a run can be made and scored."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seewhen
from confirm import captions, page, score
from confirm.settings import PARTS, WORD_LEVEL, Run, confirm, everything
from confirm.variants import AllObjects, WordLevel, begins
from seewhen.verdicts.lexicon import chair_lexicon

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "confirm" / "results"


@pytest.fixture(scope="module")
def scores():
    return json.loads((RESULTS / "scores.json").read_text("utf-8"))


def test_the_page_says_what_the_results_say(scores):
    text = page.PAGE.read_text("utf-8")
    assert page.filled(text, page.blocks(scores)) == text


def test_pages_tell_the_newest_numbers(scores):
    """In the sentences, not the tables: what a reader of the first screen is told."""
    rows = {(row["method"], row["mode"]): row for row in scores["photo-test"]["rows"] if row["tokens"] == 64}
    shown = [("regular", "t1"), ("comes", "t1"), ("drafts4", "t1"), ("regular", "greedy")]
    exact = [f"{rows[key]['chair_i']['value']:.1f}" for key in shown]
    lost = [f"{rows[key, 't1']['recall']['difference']['value']:+.1f}" for key in ("comes", "drafts4")]
    rounded = [f"{rows[key]['chair_i']['value']:.0f}" for key in (*shown, ("regular", "t0.33"))]
    message = page.PAGE.read_text("utf-8").partition("## `confirm`")[2].partition("###")[0]
    card = (ROOT / "src/seewhen/weights/photo/README.md").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8").partition("## On photographs")[2].partition("## ")[0]
    guide = (ROOT / "docs/confirm.md").read_text("utf-8").partition("## Drafts")[2].partition("## ")[0]
    for text, numbers in ((message, exact + lost), (guide, exact + lost), (card, exact), (readme, rounded)):
        assert not [number for number in numbers if number not in text]


def test_the_demonstration_shows_the_same_averages(scores):
    assert json.loads(page.AVERAGES.read_text("utf-8")) == json.loads(json.dumps(page.averages(scores)))


def test_a_gain_is_read_between_two_thresholds_on_both_sides_of_regular_recall() -> None:
    def row(recall: float, gain: float) -> dict[str, Any]:
        return {"recall": {"difference": {"value": recall}}, "chair_i_unique": {"difference": {"value": -gain}}}

    rows = {"mild": row(1.0, 10.0), "strict": row(-3.0, 18.0), "stricter": row(-5.0, 20.0)}
    assert page._at_equal_recall(rows, "mild", "strict") == pytest.approx(
        12.0
    )  # three of four pictures have the mild one
    assert page._at_equal_recall(rows, "strict", "stricter") is None
    assert page._at_equal_recall(rows, "mild", "none") is None


def test_every_run_has_a_name_of_its_own_and_a_method():
    runs = everything()
    assert len({run.name for run in runs}) == len(runs) and {run.part for run in runs} == set(PARTS)
    named = {seewhen.method(run.method).name for run in runs if run.method != WORD_LEVEL}
    assert named >= {"regular", "min-p", "confirm", "locore"}


def test_the_scores_are_those_of_the_committed_captions(tmp_path, scores):
    """Drawn scenes can be scored anywhere; photographs are not part of the repository."""
    with tarfile.open(RESULTS / "runs.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = {path.parent for path in tmp_path.rglob("scenes-test.regular.greedy.n64.jsonl.gz")}
    study = score.Study(folder, "scenes-test", tmp_path)
    for row in scores["scenes-test"]["rows"]:
        key = (row["method"], row["mode"], row["tokens"])
        if key in study.runs:
            found = np.mean([score.scores(study.counts(captions)) for _, captions in study.runs[key]], axis=0)
            assert found == pytest.approx([row[name]["value"] for name in score.METRICS], abs=2e-3), key
    again = study.bounds(folder / "scenes-test.odds.jsonl.gz", replicates=2)
    for mode, found in scores["scenes-test"]["ceiling"].items():
        for name in ("invented_now", "invented_at_same_recall", "recoverable"):
            assert again[mode][name]["value"] == pytest.approx(found[name]["value"], abs=1e-6), (mode, name)


@pytest.mark.parametrize("method", ["regular", confirm(threshold=0.0)])
def test_a_kept_prompt_changes_no_caption(tmp_path, method):
    items = captions.scenes("shifted", 0, 4)
    writer = captions.Writer("scenes", 4, "cpu")
    run, told = Run("scenes-test", method, 0, tokens=24), []
    for name in ("first", "again"):
        writer.write(run, items, tmp_path / name)
        told.append(list(score.lines(tmp_path / name))[1:])
    with seewhen.attach(writer.model, seewhen.method(method).prepare(writer.processor.tokenizer), fast="off"):
        whole = writer.model.generate(
            **writer.plain_inputs(items),
            max_new_tokens=24,
            do_sample=False,
            logits_processor=captions.noise(run, items),
            pad_token_id=writer.processor.tokenizer.pad_token_id,
        )
    length = writer.plain_inputs(items)["input_ids"].shape[1]
    texts = writer.processor.tokenizer.batch_decode(whole[:, length:], skip_special_tokens=True)
    assert told[0] == told[1]
    assert [line["text"] for line in told[0]] == [text.strip() for text in texts]


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


def test_second_attempts_are_told_and_the_first_are_the_same():
    items, writer = captions.scenes("shifted", 2000, 3), captions.Writer("scenes", 3, "cpu")
    plain = Run("scenes-validation", confirm(threshold=2.0), 0, tokens=32)
    rows = zip(writer._batch(replace(plain, note="again"), items), writer._batch(plain, items), strict=True)
    attempts = set()
    for told, expected in rows:
        assert told["text"] == expected["text"] and told["told"]["taken_back"] == expected["told"]["taken_back"]
        every = {one["object"]: one for one in told["told"]["all"]}
        denied = {one["object"] for back in told["told"]["taken_back"] for one in back["denied"]}
        assert denied | {one["object"] for one in told["told"]["verdicts"]} <= every.keys()
        assert len(every) == told["told"]["asked"]
        attempts |= {one["attempt"] for one in every.values()}
    assert attempts > {0}


def test_at_word_level_a_word_is_as_probable_as_a_yes():
    items, writer = captions.scenes("shifted", 5, 1), captions.Writer("scenes", 1, "cpu")
    tokenizer, inputs = writer.processor.tokenizer, writer.plain_inputs(items)
    options = {"max_new_tokens": 1, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
    found = {}
    names = tuple(chair_lexicon().objects)
    for make in (AllObjects, WordLevel):
        with seewhen.attach(writer.model, make(names, captions.asking(tokenizer)), fast="off") as handle:
            found[make] = writer.model.generate(**inputs, **options, output_logits=True, output_scores=True)
            told = handle.trace.told
            if make is AllObjects:
                odds = told[0]["odds"]
    asked = dict(zip(names, odds, strict=True))
    added = found[WordLevel].scores[0][0] - torch.log_softmax(found[WordLevel].logits[0][0], dim=-1)
    words = captions.asking(tokenizer).words
    first = {name: begins(words, name) for name in names}
    for name, tokens in first.items():
        for token in tokens:
            surest = max(odd for other, odd in asked.items() if token in first[other])
            assert added[token] == pytest.approx(-np.logaddexp(0, -surest), abs=1e-3), name
    assert all(first.values()) and (added == 0).sum() == len(added) - len(set().union(*first.values()))
