"""What is said about a photograph is true of its objects, as CHAIR reads it."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from photographs import texts
from photographs.boxes import COCO
from photographs.words import SCENES, nouns
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.yesno import parser_named

NAMES = tuple(sorted(COCO))
READER = CaptionReader()
SETS = st.lists(st.sampled_from(range(80)), min_size=1, max_size=8, unique=True)


@pytest.fixture(scope="module")
def known() -> texts.Statistics:
    rng = random.Random(0)
    return texts.statistics(NAMES, [rng.sample(range(80), 3) for _ in range(500)] + [[0, 1]] * 300)


@given(things=SETS, seed=st.integers(0, 10**6))
@settings(max_examples=150)
def test_a_description_names_all_objects_and_no_other(things: list[int], seed: int) -> None:
    names = [NAMES[i] for i in things]
    assert set(READER.objects(texts.describe(names, random.Random(seed)))) == set(names)
    assert set(READER.objects(texts.listing(names, random.Random(seed)))) == set(names)


def test_every_name_is_read_as_its_category() -> None:
    for name in NAMES:
        for noun in nouns(name):
            assert READER.objects(f"There is {noun.phrase} here.") == (name,)


def test_scenes_mention_no_object() -> None:
    for scene in SCENES:
        assert scene.things <= set(NAMES)
        for name in scene.names:
            assert READER.objects(f"This is {name}.") == ()


@given(things=SETS, seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_answers_are_right(things: list[int], seed: int) -> None:
    known = texts.statistics(NAMES, [things, [0, 1, 2]])
    parse = parser_named("C")
    for question, answer in texts.questions(things, known, 8, random.Random(seed)):
        asked = {NAMES.index(n) for n in READER.objects(question)}
        if answer.startswith(("Yes", "No")):
            (thing,) = asked
            assert parse(answer, "yes") == ("yes" if thing in things else "no")
        elif asked:  # a choice between two
            (chosen,) = {NAMES.index(n) for n in READER.objects(answer)}
            assert len(asked) == 2 and asked & set(things) == {chosen}
        else:
            assert {NAMES.index(n) for n in READER.objects(answer)} == set(things)


def test_answers_are_balanced_and_negatives_follow_the_statistics(known: texts.Statistics) -> None:
    rng = random.Random(0)
    answers = [a for _ in range(400) for _, a in texts.questions((5, 6), known, 5, rng)]
    yes, no = (sum(a.startswith(word) for a in answers) for word in ("Yes", "No"))
    assert 0.9 < yes / no < 1.1
    popular = [known.absent((5,), "popular", rng) for _ in range(2000)]
    assert popular.count(0) > 3 * popular.count(40)
    together = [known.absent((0,), "adversarial", rng) for _ in range(2000)]
    assert together.count(1) > 10 * max(together.count(i) for i in range(2, 80))
    assert 5 not in popular and 0 not in together


def test_an_absent_thing_is_found_even_where_none_comes_along() -> None:
    alone = texts.Statistics(NAMES, np.zeros(80, dtype=int), np.zeros((80, 80), dtype=int))
    assert alone.absent((3,), "adversarial", random.Random(0)) != 3


def test_what_is_plain_is_named_first() -> None:
    rng = random.Random(0)
    assert texts.in_order((1, 2, 3), {1: -50.0, 2: 50.0, 3: 0.0}, rng) == [2, 3, 1]
    assert sorted(texts.in_order((1, 2, 3), None, rng)) == [1, 2, 3]
