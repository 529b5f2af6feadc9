"""POPE: question files in every published form, scores, and questions made from any annotated set."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.benchmarks import load
from seewhen.benchmarks.base import content_checksum
from seewhen.benchmarks.chair.coco import load_objects
from seewhen.benchmarks.pope import Pope
from seewhen.benchmarks.pope.build import build_questions, question
from seewhen.benchmarks.pope.questions import SPLITS, load_answers, load_questions
from seewhen.errors import InvalidInput
from seewhen.verdicts.lexicon import chair_lexicon

RECORDS = [
    {"question_id": 1, "image": "a.jpg", "text": "Is there a dog in the image?", "label": "yes"},
    {"question_id": 2, "image": "a.jpg", "text": "Is there a cat in the image?", "label": "no"},
    {"question_id": 3, "image": "b.jpg", "text": "Is there an owl in the image?", "label": "yes"},
    {"question_id": 4, "image": "b.jpg", "text": "Is there a car in the image?", "label": "no"},
]


def test_all_published_forms_are_the_same_questions(write) -> None:
    lines = load_questions(write("lines/coco_pope_random.json", RECORDS))
    array = load_questions(write("array/coco_pope_random.json", json.dumps(RECORDS, indent=4)))
    grouped = load_questions(
        write(
            "chat/coco_pope_chat_random.json",
            [
                {"chat_id": n, "image": pair[0]["image"], "text": [r["text"] for r in pair],
                 "label": [r["label"] for r in pair]}
                for n, pair in enumerate((RECORDS[:2], RECORDS[2:]))
            ],
        )
    )  # fmt: skip
    assert lines == array == grouped
    assert lines[0].split == "coco-random" and lines[3].id == "coco-random/4"


def test_scores_by_hand() -> None:
    samples = questions_of(RECORDS)
    answers = dict(zip([s.id for s in samples], ["Yes", "Yes", "No", "no way"], strict=True))
    score = Pope(samples).score(answers)
    assert score.metrics["accuracy"] == 50.0
    assert score.metrics["precision"] == 50.0
    assert score.metrics["recall"] == 50.0
    assert score.metrics["yes_ratio"] == 50.0
    assert score.metrics["other_rate"] == 0.0
    assert [row.right for row in score.rows] == [1, 0, 0, 1]
    assert [row.cluster for row in score.rows] == ["a.jpg", "a.jpg", "b.jpg", "b.jpg"]


def test_headline_is_the_mean_over_splits() -> None:
    first, second = questions_of(RECORDS, "coco-random"), questions_of(RECORDS[:2], "coco-popular")
    answers = {s.id: "Yes" for s in first} | {s.id: str(s.truth) for s in second}
    metrics = Pope(first + second).score(answers).metrics
    assert metrics["coco-random/accuracy"] == 50.0 and metrics["coco-popular/accuracy"] == 100.0
    assert metrics["accuracy"] == 75.0  # pooled it would be 66.67


def test_missing_answers_are_counted_and_foreign_ones_refused() -> None:
    samples = questions_of(RECORDS)
    assert Pope(samples).score({samples[0].id: "Yes"}).missing == 3
    with pytest.raises(InvalidInput, match="belong to no pope sample"):
        Pope(samples).score({"coco-random/99": "Yes"})


def test_answers_with_ids_and_in_the_order_of_the_questions(write) -> None:
    samples = questions_of(RECORDS)
    expected = {s.id: "Yes" for s in samples}
    with_ids = [{"question_id": n, "text": "Yes"} for n in (4, 3, 2, 1)]
    in_order = [{"question": r["text"], "answer": "Yes"} for r in RECORDS]
    assert load_answers(write("ids.jsonl", with_ids), samples) == expected
    assert load_answers(write("order.jsonl", in_order), samples) == expected
    with pytest.raises(InvalidInput, match=r"order\.jsonl, line 1"):
        load_answers(write("order.jsonl", list(reversed(in_order))), samples)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question_id": 1, "image": "a", "text": "Is?", "label": "yes"}\n{"quest', "line 2: not JSON"),
        ('{"question_id": 1, "image": "a", "text": "Is?", "label": "maybe"}\n', "neither yes nor no"),
        ('{"question_id": 1, "text": "Is?", "label": "yes"}\n', "none of the fields image"),
        ('{"image": "a", "text": ["Is?", "Is?"], "label": ["yes"]}\n', "not as many labels"),
        ("[1, 2]", "element 1: not a JSON object"),
        ("", "no questions"),
        (json.dumps(RECORDS[0]) + "\n" + json.dumps(RECORDS[0]), "question_id 1 twice"),
    ],
)
def test_malformed_question_files_name_the_place(write, content: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as error:
        load_questions(write("q.json", content))
    assert "q.json" in str(error.value)


def test_published_files(shared: Path) -> None:
    benchmark = load("pope", shared)
    assert Counter(s.split for s in benchmark.samples()) == dict.fromkeys(SPLITS, 3000)
    for split in SPLITS:
        samples = [s for s in benchmark.samples() if s.split == split]
        assert len({s.image for s in samples}) == 500
        assert Counter(s.truth for s in samples) == {"yes": 1500, "no": 1500}
        assert not any("imange" in s.question for s in samples)
    answers = {s.id: "Yes" for s in benchmark.samples()}
    metrics = benchmark.score(answers).metrics
    assert metrics["accuracy"] == 50 and metrics["recall"] == 100 and metrics["yes_ratio"] == 100


def test_labels_agree_with_the_objects_of_the_images(shared: Path) -> None:
    objects = load_objects([shared / "coco_objects.json.gz"], chair_lexicon(), lambda caption: ())
    for sample in load_questions(shared / "pope" / "coco_pope_random.json"):
        thing = sample.question.removeprefix("Is there a").removeprefix("n").strip().removesuffix(" in the image?")
        image = sample.image.split("_")[-1].removesuffix(".jpg").lstrip("0")
        assert (thing in objects[image]) == (sample.truth == "yes"), sample


NAMES = ["apple", "bus", "cat", "dog", "egg", "fox", "goat", "hat"]
OBJECTS = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4), st.sets(st.sampled_from(NAMES), max_size=5), min_size=1, max_size=12
)


@settings(max_examples=60)
@given(OBJECTS, st.sampled_from(["random", "popular", "adversarial"]), st.integers(0, 5))
def test_built_questions_follow_the_recipe(objects: dict, kind: str, seed: int) -> None:
    frequency = Counter(thing for things in objects.values() for thing in things)
    if not any(len(t) >= 3 and len(frequency) - len(t) >= 3 for t in objects.values()):
        with pytest.raises(InvalidInput):
            build_questions(objects, kind, seed=seed)
        return
    samples = build_questions(objects, kind, seed=seed)
    assert samples == build_questions(dict(reversed(objects.items())), kind, seed=seed)  # order does not matter
    for image in {s.image for s in samples}:
        mine = [s for s in samples if s.image == image]
        assert [s.truth for s in mine] == ["yes", "no"] * 3
        assert len({s.question for s in mine}) == 6
        by_question = {question(thing): thing for thing in NAMES}
        for sample in mine:
            assert (by_question[sample.question] in objects[image]) == (sample.truth == "yes")
        if kind == "popular":
            asked = [frequency[by_question[s.question]] for s in mine if s.truth == "no"]
            absent = sorted((frequency[t] for t in frequency if t not in objects[image]), reverse=True)
            assert asked == absent[:3]


def test_kinds_share_images_and_present_objects_and_the_adversary_knows_company() -> None:
    objects = {f"i{n}": {"cup", "spoon", "bowl"} for n in range(5)}
    objects |= {f"j{n}": {"car", "bus", "sign"} for n in range(9)}
    objects["odd"] = {"cup", "car", "sign"}
    built = {kind: build_questions(objects, kind, seed=3) for kind in ("random", "popular", "adversarial")}
    present = {kind: [(s.image, s.question) for s in q if s.truth == "yes"] for kind, q in built.items()}
    assert present["random"] == present["popular"] == present["adversarial"]
    odd = [s.question for s in built["adversarial"] if s.image == "odd"]
    after_cup = odd[odd.index("Is there a cup in the image?") + 1]
    assert after_cup in ("Is there a bowl in the image?", "Is there a spoon in the image?")
    assert question("umbrella") == "Is there an umbrella in the image?"


def test_content_checksum_sees_every_letter() -> None:
    typo = [{**RECORDS[0], "text": "Is there a dog in the imange?"}, *RECORDS[1:]]
    assert content_checksum(questions_of(RECORDS)) != content_checksum(questions_of(typo))


def questions_of(records: list[dict], split: str = "coco-random"):
    from seewhen.benchmarks.pope.questions import questions_from

    return questions_from(enumerate(records, 1), split, Path("test"))
