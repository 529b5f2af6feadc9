"""AMBER: descriptions against annotated objects, questions with "no" as the positive class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from seewhen.bench import load
from seewhen.bench.amber import Amber, Words
from seewhen.bench.base import Sample

WORDS = Words(
    related={"grass": ("ground",), "ground": ("floor",), "person": ("man", "woman"), "dog": (), "cloud": ("sky",),
             "sky": (), "light": (), "tree": ("forest",)},
    safe=frozenset({"light"}),
)  # fmt: skip


def describe(answer: str, truth: tuple[str, ...], likely: tuple[str, ...] = ("dog", "cloud")) -> dict:
    amber = Amber((Sample("1", "a.jpg", "Describe this image.", truth, "generative"),), {"1": likely}, WORDS)
    return dict(amber.score({"1": answer}).metrics)


def test_description_by_hand() -> None:
    metrics = describe("The man sees a tree, a light and a dog under the sky.", ("person", "grass", "sky"))
    # nouns man, tree, light, dog, sky; tree and dog are not there; light is safe and covers nothing
    assert metrics["chair"] == pytest.approx(40.0)
    assert metrics["cover"] == pytest.approx(100 * 2 / 3)
    assert metrics["hal"] == 100.0
    assert metrics["cog"] == 50.0


def test_related_words_are_booked_before_the_word_itself() -> None:
    # "ground" is related to the first object, so "grass" is covered and "ground" is not: as published.
    assert describe("On the ground.", ("grass", "ground"))["cover"] == 50.0
    assert describe("The floor and the ground.", ("grass", "ground"))["cover"] == 100.0


def test_objects_annotated_twice_are_covered_once() -> None:
    assert describe("A dog and a dog.", ("dog", "dog"), ("cloud",))["cover"] == 50.0


def test_plurals_and_verbs() -> None:
    assert describe("Two dogs. They light it.", ("dog",), ("cloud",))["chair"] == 0.0


QUESTIONS = tuple(
    Sample(str(n), f"{n % 2}.jpg", "Is it?", truth, kind)
    for n, (truth, kind) in enumerate(
        [("no", "existence"), ("no", "existence"), ("yes", "state"), ("no", "number"), ("yes", "action")]
    )
)


def test_no_is_the_positive_class() -> None:
    amber = Amber(QUESTIONS, {}, WORDS)
    metrics = amber.score({"0": "No", "1": "Yes", "2": "No", "3": "No", "4": "Yes"}).metrics
    assert metrics["accuracy"] == 60.0
    assert metrics["precision"] == pytest.approx(200 / 3) and metrics["recall"] == pytest.approx(200 / 3)
    assert metrics["f1"] == pytest.approx(100 * 2 * (4 / 9) / (4 / 3 + 1e-4))
    assert metrics["existence/f1"] == pytest.approx(100 * 2 * 0.5 / (1.5 + 1e-3))
    assert metrics["attribute/accuracy"] == pytest.approx(200 / 3)


def test_published_reading_is_literal() -> None:
    answers = {"0": "No.", "1": "no", "2": " Yes", "3": "No", "4": "Yes"}
    assert Amber(QUESTIONS, {}, WORDS).score(answers).metrics["accuracy"] == 40.0
    assert Amber(QUESTIONS, {}, WORDS, parser="strict").score(answers).metrics["accuracy"] == 100.0


@pytest.fixture(scope="module")
def published(shared: Path) -> Amber:
    return load("amber", shared)


def test_published_files(published: Amber) -> None:
    kinds = Counter(sample.split for sample in published.samples())
    assert kinds == {
        "generative": 1004,
        "existence": 4924,
        "state": 4764,
        "number": 2072,
        "action": 792,
        "relation": 1664,
    }
    assert len({sample.image for sample in published.samples()}) == 1004


def test_perfect_answers_to_the_published_questions(published: Amber) -> None:
    answers = {}
    for sample in published.samples():
        if sample.split == "generative":
            # Words the offline reader would not take for a noun are left out.
            answers[sample.id] = " ".join(f"The {word} ." for word in sample.truth)
        else:
            answers[sample.id] = str(sample.truth).capitalize()
    score = published.score(answers)
    assert score.missing == 0
    assert score.metrics["accuracy"] == 100.0 and score.metrics["f1"] == pytest.approx(100, abs=0.01)
    assert score.metrics["chair"] == 0.0 and score.metrics["hal"] == 0.0 and score.metrics["cog"] == 0.0
    assert score.metrics["cover"] > 85  # the rest is annotated twice or booked on a related word
    assert score.metrics["amber"] == pytest.approx(100, abs=0.01)


def test_inventing_what_models_tend_to_invent(published: Amber) -> None:
    answers = {s.id: " ".join(f"The {w} ." for w in published.likely[s.id]) for s in published.samples()[:1004]}
    score = published.score(answers)
    assert score.missing == 0  # the discriminative task was not attempted at all
    assert score.metrics["cog"] > 75 and score.metrics["hal"] > 95
    assert "accuracy" not in score.metrics


def test_both_noun_readers_mostly_agree(published: Amber, shared: Path, nltk_data: Path) -> None:
    from seewhen.bench.amber_nouns import NounReader
    from seewhen.bench.chair import load_captions

    known = published.words.known
    captions = list(load_captions(shared / "chair" / "captions" / "llava-1.5_greedy.jsonl").values())[:150]
    found = [
        [Counter(noun for noun in NounReader(name, known).nouns(caption) if noun in known) for caption in captions]
        for name in ("nltk", "offline")
    ]
    nltk_total = sum(counts.total() for counts in found[0])
    apart = sum(((a - b) + (b - a)).total() for a, b in zip(*found, strict=True))
    assert nltk_total > 1000 and apart / nltk_total < 0.05
