"""Words, risk and named objects."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from seewhen.showing.viewer.object_words import named_objects
from seewhen.showing.viewer.word_risk import LEVELS, Word, differing, group, level, risk, word_risk

TOKENS = st.lists(st.text(alphabet="ab .,\n'é“", max_size=4))


@given(TOKENS)
def test_words_hold_every_token_once_and_in_order(texts: list[str]) -> None:
    words = group(texts)
    assert "".join(word.text for word in words) == "".join(texts)
    covered = [index for word in words for index in range(word.start, word.end)]
    assert covered == list(range(len(texts)))


def test_tokens_of_one_word_belong_together_and_punctuation_stands_alone() -> None:
    assert group([" A", " gir", "affe", "'s", " head", ".", " It"]) == [
        Word(" A", 0, 1),
        Word(" giraffe's", 1, 4),
        Word(" head", 4, 5),
        Word(".", 5, 6),
        Word(" It", 6, 7),
    ]


@given(st.integers(1, 1000))
def test_risk_of_a_toss_up(choices: int) -> None:
    assert math.isclose(risk(math.log(choices)) or 0.0, 1 - 1 / choices, abs_tol=1e-9)


@given(st.floats(0, 20), st.floats(0, 20))
def test_risk_and_level_rise_with_entropy(one: float, two: float) -> None:
    low, high = sorted((one, two))
    first, second = risk(low), risk(high)
    assert first is not None and second is not None
    assert 0 <= first <= second <= 1
    assert level(first) <= level(second) < len(LEVELS)


def test_unknown_risk() -> None:
    assert risk(None) is None and risk(math.nan) is None and level(None) == 0
    assert word_risk(Word("x", 0, 3), [0.1, None, 0.7, 0.9]) == 0.7


@given(st.lists(st.sampled_from("abcd.")))
def test_equal_answers_do_not_differ(words: list[str]) -> None:
    assert differing(words, words) == frozenset()


def test_differing_words() -> None:
    first = ["A", " cat", " on", " a", " mat", "."]
    assert differing(first, ["A", " dog", " on", " the", " mat", "!"]) == {1}
    assert differing(first, [" On", " a", " mat", " there", " is", " a", " cat"]) == frozenset(), "said, elsewhere"


def test_objects_are_found_where_they_are_named() -> None:
    caption = " A hot dog , two dogs and a teddy bear next to the man"
    words = group([f" {word}" for word in caption.split()])
    found = named_objects([word.text for word in words], {"dog", "person"})
    texts = ["".join(word.text for word in words[each.start : each.end]).strip() for each in found]
    assert list(zip(texts, [each.name for each in found], [each.present for each in found], strict=True)) == [
        ("hot dog", "hot dog", False),
        ("dogs", "dog", True),
        ("teddy bear", "teddy bear", False),
        ("man", "person", True),
    ]
