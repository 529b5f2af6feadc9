"""MME: the tool's reading of answers, its formats, points and sub-totals."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seewhen.benchmarks import load
from seewhen.benchmarks.base import Options
from seewhen.benchmarks.mme import Mme, parse
from seewhen.benchmarks.mme.questions import (
    QUESTIONS,
    SUBTASKS,
    bare_question,
    load_folder,
    load_llava_answers,
    load_results,
    questions_from,
)
from seewhen.benchmarks.records import read_records
from seewhen.errors import InvalidInput, InvalidMethod


def results(folder: Path) -> tuple[Mme, dict[str, str]]:
    return Mme.read(folder, [], Options())


EXISTENCE = (
    "1.jpg\tIs there a dog in this image? Please answer yes or no.\tYes\tYes, there is.\n"
    "1.jpg\tIs there a cat in this image? Please answer yes or no.\tNo\tno\n"
    "2.jpg\tIs there a car in this image? Please answer yes or no.\tYes\tyes\n"
    "2.jpg\tIs there a bus in this image?  Please answer yes or no.\tNo\tIt is not\n"
)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [("Yes.", "yes"), (" no", "no"), ("It is not", "other"), ("know", "no"), ("NO", "no"), ("", "other")],
)
def test_examples(answer: str, verdict: str) -> None:
    assert parse(answer) == verdict


@pytest.mark.parametrize(
    ("answer", "official", "lmms"),
    [
        ("y", "other", "yes"),
        ("n.", "other", "no"),
        ("  no", "no", "no"),
        ("   no", "other", "no"),
        ("...yes", "other", "yes"),
    ],
)
def test_lmms_eval_reads_more(answer: str, official: str, lmms: str) -> None:
    assert parse(answer) == official
    assert parse(answer, "lmms-eval") == lmms


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    assert parse(text) in ("yes", "no", "other") and parse(text, "lmms-eval") in ("yes", "no", "other")


def test_unknown_parser() -> None:
    with pytest.raises(InvalidMethod, match="official, lmms-eval"):
        parse("yes", "strict")


def test_points_of_the_result_files(write, tmp_path: Path) -> None:
    write("existence.txt", EXISTENCE)
    benchmark, answers = results(tmp_path)
    score = benchmark.score(answers)
    assert score.metrics["existence/acc"] == 75.0
    assert score.metrics["existence/acc+"] == 50.0
    assert score.metrics["existence/score"] == 125.0
    assert score.metrics["existence/other_rate"] == 25.0
    assert "hallucination" not in score.metrics  # three of its four subtasks are not there
    assert sum(row.counts["images"] for row in score.rows) == 2


def test_totals_of_complete_groups(write, tmp_path: Path) -> None:
    for subtask in SUBTASKS:
        write(f"{subtask}.txt", EXISTENCE.replace("\tIt is not", "\tno"))
    benchmark, answers = results(tmp_path)
    metrics = benchmark.score(answers).metrics
    assert (metrics["hallucination"], metrics["perception"], metrics["cognition"]) == (800, 2000, 800)


def test_one_question_of_an_image_earns_no_pair(write, tmp_path: Path) -> None:
    write("existence.txt", EXISTENCE)
    benchmark, answers = results(tmp_path)
    kept = {key: text for key, text in answers.items() if key.startswith("existence/1.jpg#1")}
    score = benchmark.score(kept)
    assert score.metrics["existence/acc"] == 100 and score.metrics["existence/acc+"] == 0 and score.missing == 3


def test_release_folder_and_llava_answers(write, tmp_path: Path) -> None:
    write(
        "MME/artwork/questions_answers_YN/7.txt",
        "Is it old? Please answer yes or no.\tYes\nIs it new?  Please answer yes or no.\tNo\n",
    )
    write("MME/artwork/images/7.jpg", "")
    write(
        "MME/count/3.txt",
        "Are there two? Please answer yes or no.\tYes\nIs there one? Please answer yes or no.\tNo\n",
    )
    write("MME/count/3.png", "")
    samples = load_folder(tmp_path / "MME")
    assert [(s.split, s.image, s.truth) for s in samples] == [
        ("count", "count/3.png", "yes"),
        ("count", "count/3.png", "no"),
        ("artwork", "artwork/images/7.jpg", "yes"),
        ("artwork", "artwork/images/7.jpg", "no"),
    ]
    for sample in samples:
        assert Mme(samples).picture(sample, tmp_path / "MME").is_file()
    suffix = "\nAnswer the question using a single word or phrase."
    answers = [
        {"question_id": "artwork/images/7.jpg", "prompt": "Is it new?" + suffix, "text": "No"},
        {"question_id": "artwork/images/7.jpg", "prompt": "Is it old?" + suffix, "text": "Yes"},
    ]
    given_answers = load_llava_answers(write("answers.jsonl", answers), samples)
    assert Mme(samples).score(given_answers).metrics["artwork/score"] == 200
    with pytest.raises(InvalidInput, match=r"answers.jsonl, line 1.*does not ask"):
        load_llava_answers(write("answers.jsonl", [{**answers[0], "prompt": "Is it green?"}]), samples)
    assert len(load("mme", tmp_path, split="count").samples()) == 2


def test_prompts_ask_each_question_in_its_style(write, tmp_path: Path) -> None:
    write("existence.txt", EXISTENCE)
    benchmark, _ = results(tmp_path)
    sample = benchmark.samples()[3]
    assert benchmark.prompt(sample, "plain") == "Is there a bus in this image? Please answer yes or no."
    assert benchmark.prompt(sample, "llava").endswith("image?\nAnswer the question using a single word or phrase.")


def test_published_questions_in_llava_form(shared: Path) -> None:
    samples = questions_from(
        (
            r["question_id"].split("/")[0],
            {"image": r["question_id"], "question": bare_question(r["text"]), "answer": ""},
        )
        for _, r in read_records(shared / "mme" / "llava_mme.jsonl")
    )
    assert Counter(s.split for s in samples) == QUESTIONS and len(samples) == 2374
    assert set(Counter(s.image for s in samples).values()) == {2}
    assert len({s.id for s in samples}) == 2374
    assert not any("Answer" in s.question or "\n" in s.question for s in samples if s.split != "OCR")
    with pytest.raises(InvalidInput, match="right answers"):
        Mme(samples).score({samples[0].id: "yes"})


@pytest.mark.parametrize("line", ["1.jpg\tIs it?\tMaybe\tyes\n", "1.jpg Is it? Yes\n", "1.jpg\tIs it?\tYes\n"])
def test_malformed_results(write, tmp_path: Path, line: str) -> None:
    write("color.txt", line)
    with pytest.raises(InvalidInput, match=r"color\.txt"):
        load_results(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["Is it? Please answer yes or no.", "Is it?  Please answer yes or no.", "Is  it?",
     "Is it?\nAnswer the question using a single word or phrase. Answer yes or no, and check."],
)  # fmt: skip
def test_bare_question(text: str) -> None:
    assert bare_question(text) == "Is it?"
