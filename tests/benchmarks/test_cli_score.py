"""`seewhen score` and `seewhen data check` as a user runs them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from seewhen.cli import main

QUESTIONS = [
    {"question_id": 1, "image": "a.jpg", "text": "Is there a dog in the image?", "label": "yes"},
    {"question_id": 2, "image": "a.jpg", "text": "Is there a cat in the image?", "label": "no"},
]
OBJECTS = json.dumps({"categories": ["cat", "dog"], "images": {"1": [1], "2": [0]}})


@dataclass(frozen=True)
class Result:
    stdout: str
    stderr: str


def seewhen(*arguments: object, code: int = 0) -> Result:
    """The command line's own entry point, in this process: a subprocess would spend a second on imports."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["seewhen", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as stopped,
    ):
        main()
    assert (stopped.value.code or 0) == code, err.getvalue()
    return Result(out.getvalue(), err.getvalue())


def test_pope(write, tmp_path: Path) -> None:
    questions = write("coco_pope_random.json", QUESTIONS)
    answers = write(
        "answers.jsonl", [{"question_id": 1, "text": "Yes"}, {"question_id": 2, "response": "There isn't."}]
    )
    base = ("score", "pope", "--questions", questions, "--answers", answers)
    score = json.loads(seewhen(*base, "--json").stdout)
    assert score["metrics"]["accuracy"] == 100 and score["settings"]["parser"] == "C" and score["missing"] == 0
    assert json.loads(seewhen(*base, "--json", "--parser", "A").stdout)["metrics"]["accuracy"] == 50
    rows = tmp_path / "rows.jsonl"
    assert "100.00" in seewhen(*base, "--rows", rows).stdout
    assert [json.loads(line)["right"] for line in rows.read_text().splitlines()] == [1, 1]


def test_the_answers_of_a_run_are_found_by_id(write) -> None:
    """A run keeps the questions of an image together, wherever they stand in the file of questions."""
    images = {1: "a.jpg", 2: "b.jpg", 3: "a.jpg", 4: "b.jpg"}
    truth = {"a.jpg": "yes", "b.jpg": "no"}
    asked = [
        {"question_id": n, "image": image, "text": f"Is there a {n}?", "label": truth[image]}
        for n, image in images.items()
    ]
    given = [
        {"id": f"coco-random/{n}", "seed": 0, "image": images[n], "answer": truth[images[n]].title()}
        for n in (1, 3, 2, 4)
    ]
    base = ("score", "pope", "--questions", write("coco_pope_random.json", asked), "--json", "--answers")
    score = json.loads(seewhen(*base, write("samples.jsonl", given)).stdout)
    assert score["metrics"]["accuracy"] == 100 and score["missing"] == 0

    given[1] = {"id": "coco-random/3", "seed": 0, "image": "a.jpg", "error": "There is no file a.jpg."}
    score = json.loads(seewhen(*base, write("samples.jsonl", given)).stdout)
    assert score["metrics"]["accuracy"] == 100 and (score["samples"], score["missing"]) == (3, 1)


def test_the_answers_of_a_run_are_scored_against_all_its_questions(write) -> None:
    asked = [
        x for kind in ("random", "popular") for x in ("--questions", write(f"coco_pope_{kind}.json", QUESTIONS))
    ]
    run = [
        {"id": f"coco-{kind}/{number}", "seed": 0, "image": "a.jpg", "answer": "Yes", "tokens": 1}
        for kind in ("random", "popular")
        for number in (1, 2)
    ]
    score = json.loads(seewhen("score", "pope", *asked, "--answers", write("s.jsonl", run), "--json").stdout)
    assert score["metrics"]["coco-popular/accuracy"] == score["metrics"]["accuracy"] == 50
    assert score["samples"] == 4 and score["missing"] == 0


def test_missing_answers_are_a_warning(write) -> None:
    questions = write("q.json", QUESTIONS)
    answers = write("a.jsonl", [{"question_id": 1, "text": "Yes"}])
    result = seewhen("score", "pope", "--questions", questions, "--answers", answers, "--json")
    assert json.loads(result.stdout)["missing"] == 1 and "1 sample has no answer" in result.stderr


def test_chair_takes_several_annotation_files(write) -> None:
    answers = write(
        "c.jsonl", [{"image_id": 1, "caption": "A dog and a cat."}, {"image_id": 2, "caption": "A cat."}]
    )
    table = write("objects.json", OBJECTS)
    more = write("captions.json", json.dumps({"annotations": [{"image_id": 1, "caption": "a kitten"}]}))
    one = json.loads(seewhen("score", "chair", "--answers", answers, "--objects", table, "--json").stdout)
    two = json.loads(
        seewhen("score", "chair", "--answers", answers, "--objects", table, "--objects", more, "--json").stdout
    )
    assert one["metrics"]["chair_s"] == 50 and two["metrics"]["chair_s"] == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"image_id": 1, "caption": "A dog."}\n{"image_id": 2, "capt', "line 2: not JSON"),
        ('{"image_id": 1, "words": "A dog."}\n', "line 1: none of the fields"),
        ('{"image_id": 1, "caption": "A dog."}\n' * 2, "line 2: image_id 1 was already answered in line 1"),
        ('{"image_id": 1, "caption": 5}\n', "line 1: the answer is not text"),
        ("3\n", "line 1: not a JSON object"),
        ("\n", "holds no answers"),
        ('{"image_id": 77, "caption": "A dog."}\n', "Nothing is known about image 77"),
    ],
)
def test_bad_answers_are_one_line_and_exit_2(write, content: str, message: str) -> None:
    answers = write("mine.jsonl", content)
    result = seewhen("score", "chair", "--answers", answers, "--objects", write("o.json", OBJECTS), code=2)
    assert message in result.stderr and len(result.stderr.strip().splitlines()) == 1
    if "image 77" not in message:
        assert "mine.jsonl" in result.stderr


def test_a_missing_file_is_one_line(tmp_path: Path, write) -> None:
    gone = tmp_path / "gone.jsonl"
    result = seewhen("score", "chair", "--answers", gone, "--objects", write("o.json", OBJECTS), code=2)
    assert "There is no file" in result.stderr and "Traceback" not in result.stderr


def test_mme_result_folder(write, tmp_path: Path) -> None:
    write("results/color.txt", "1.jpg\tIs it red?\tYes\tYes\n1.jpg\tIs it blue?\tNo\tNo\n")
    score = json.loads(seewhen("score", "mme", "--answers", tmp_path / "results", "--json").stdout)
    assert score["metrics"]["color/score"] == 200
    lines = write("a.jsonl", [{"question_id": "color/1.jpg", "prompt": "Is it red?", "text": "no"}])
    assert "--questions" in seewhen("score", "mme", "--answers", lines, code=2).stderr
    result = seewhen("score", "mme", "--answers", lines, "--questions", tmp_path / "results", "--json")
    assert json.loads(result.stdout)["metrics"]["color/acc"] == 0


def test_amber(shared: Path, write) -> None:
    answers = write(
        "a.json", json.dumps([{"id": 1, "response": "A forest and a dog."}, {"id": 1005, "response": "Yes"}])
    )
    result = seewhen("score", "amber", "--data", shared, "--answers", answers, "--json")
    metrics = json.loads(result.stdout)["metrics"]
    assert metrics["chair"] == 50 and metrics["accuracy"] == 100


def test_data_check(shared: Path, tmp_path: Path) -> None:
    findings = json.loads(seewhen("data", "check", shared, "--bench", "pope", "--json").stdout)
    assert len(findings) == 9 and {finding["state"] for finding in findings} == {"ok"}
    told = seewhen("data", "check", shared).stdout
    assert re.search(
        r"^ok +pope/gqa_pope_random\.json +3000 questions, 500 images, 1500 yes *$", told, re.MULTILINE
    )
    assert "from the folder output/" in " ".join(seewhen("data", "check", tmp_path, code=1).stdout.split())
    assert "no folder" in seewhen("data", "check", tmp_path / "gone", code=2).stderr
