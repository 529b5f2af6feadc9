"""RePOPE: corrected labels as further columns; the published files where they are there."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from seewhen.benchmarks import load
from seewhen.benchmarks.pope import KINDS, Pope, load_questions
from seewhen.benchmarks.pope.repope import labels_in, labels_named
from seewhen.benchmarks.yesno import count_answer, matthews
from seewhen.cli import app
from seewhen.errors import InvalidInput

ASKED = [("1", "dog", "yes"), ("1", "cat", "no"), ("2", "dog", "yes"), ("2", "car", "no"), ("3", "bus", "yes")]
AGAIN = [("1", "dog", "yes"), ("1", "cat", "yes"), ("2", "dog", "no"), ("2", "car", "no")]  # the bus is dropped


def lines(records) -> str:
    return "".join(
        json.dumps(
            {
                "question_id": n,
                "image": f"COCO_val2014_{int(image):012d}.jpg",
                "text": f"Is there a {thing}?",
                "label": label,
            }
        )
        + "\n"
        for n, (image, thing, label) in enumerate(records)
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "coco_pope_random.json").write_text(lines(ASKED))
    (tmp_path / "repope").mkdir()
    (tmp_path / "repope" / "coco_repope_random.json").write_text(lines(AGAIN))
    return tmp_path


def test_labels_are_joined_on_image_and_question(folder: Path) -> None:
    bench = load("pope", folder)
    score = bench.score({sample.id: "Yes" for sample in bench.samples()})
    assert score.metrics["accuracy"] == 60 and score.metrics["repope_accuracy"] == 50
    assert score.metrics["repope_mcc"] == 0 and score.metrics["repope_f1"] == pytest.approx(200 / 3)
    assert [row.detail.get("corrected") for row in score.rows] == ["yes", "yes", "no", "no", None]
    right = {"yes": "Yes", "no": "No"}
    best = bench.score({row.id: right[row.detail.get("corrected", "no")] for row in score.rows})
    assert best.metrics["repope_accuracy"] == best.metrics["repope_f1"] == best.metrics["repope_mcc"] == 100


def test_other_sets_keep_their_figures(folder: Path) -> None:
    (folder / "gqa_pope_random.json").write_text(lines(ASKED).replace("COCO_val2014_", ""))  # numbers as COCO's
    bench = load("pope", folder)
    metrics = bench.score({sample.id: "Yes" for sample in bench.samples()}).metrics
    assert metrics["coco-random/repope_accuracy"] == metrics["repope_accuracy"] == 50
    assert "gqa-random/repope_accuracy" not in metrics and metrics["gqa-random/accuracy"] == 60


def test_the_command(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("".join(f'{{"question_id": {n}, "text": "Yes"}}\n' for n in range(5)))
    asked = ["score", "pope", "--questions", str(folder / "coco_pope_random.json"), "--json"]
    asked += ["--answers", str(tmp_path / "mine.jsonl")]
    shown = json.loads(CliRunner().invoke(app, [*asked, "--labels", "repope"]).stdout)["metrics"]
    assert shown["repope_accuracy"] == 50
    plain = json.loads(CliRunner().invoke(app, asked).stdout)["metrics"]
    assert plain == {name: value for name, value in shown.items() if not name.startswith("repope_")}


def test_labels_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert labels_in(tmp_path) == {} == labels_named("pope", [tmp_path / "x.json"])
    with pytest.raises(InvalidInput, match=r"coco_repope_random\.json is not in .*data get pope"):
        labels_named("repope", [tmp_path / "coco_pope_random.json"])


@given(st.lists(st.tuples(st.sampled_from(["yes", "no"]), st.sampled_from(["yes", "no"])), min_size=1))
def test_mcc_is_the_correlation_of_labels_and_answers(pairs) -> None:
    counts = [count_answer(said, label, "yes", said) for label, said in pairs]
    sums = {name: sum(count[name] for count in counts) for name in counts[0]}
    labels, said = (np.array([pair[k] == "yes" for pair in pairs], float) for k in (0, 1))
    expected = 0.0 if labels.std() == 0 or said.std() == 0 else 100 * np.corrcoef(labels, said)[0, 1]
    assert float(matthews(sums)) == pytest.approx(expected, abs=1e-9)


def test_the_published_files(shared: Path) -> None:
    labels = labels_in(shared / "pope")
    if not labels:
        pytest.skip("RePOPE's label files are not there")
    kept = {}
    for kind in KINDS:
        questions = load_questions(shared / f"pope/coco_pope_{kind}.json")
        truth = {q.id: {"yes": "Yes", "no": "No"}[str(q.truth)] for q in questions}
        score = Pope(questions, "C", labels).score(truth)
        kept[kind] = sum(row.counts.get("repope_questions", 0) for row in score.rows)
        assert score.metrics["accuracy"] == 100 and 93 < score.metrics["repope_accuracy"] < 95
    assert kept == {"random": 2774, "popular": 2727, "adversarial": 2684}
