"""What may not be said about a denied object: no spelling of its words, no beginning that goes nowhere else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.verdicts.forbidden import Forbidden
from seewhen.verdicts.lexicon import Lexicon, chair_lexicon, open_lexicon
from seewhen.verdicts.reader import read_mentions

COCO, OPEN = Forbidden(chair_lexicon()), Forbidden(open_lexicon())


def may_follow(forbidden: Forbidden, denied: tuple[str, ...], before: str, piece: str) -> bool:
    return piece.lower() not in forbidden.pieces(denied, before)


def test_a_word_may_not_be_begun() -> None:
    assert not may_follow(COCO, ("frisbee",), "He throws a", " fris")  # and on with "beard"
    assert not may_follow(COCO, ("frisbee",), "He throws a f", "ris")
    assert may_follow(COCO, ("frisbee",), "He throws a", " fr")  # two letters say nothing
    assert not may_follow(COCO, ("dining table",), "beside the", " Dining")
    assert not may_follow(COCO, ("motorcycle",), "on a motor", "cycle")


def test_words_that_begin_like_another_objects_may_be_begun() -> None:
    assert may_follow(COCO, ("baseball bat",), "with a", " baseball")  # glove
    assert not may_follow(COCO, ("baseball bat",), "with a baseball", " bat")
    assert not may_follow(COCO, ("baseball bat", "baseball glove"), "with a", " baseball")
    assert may_follow(OPEN, ("handbag",), "with a", " hand")  # handle, handrail
    assert not may_follow(OPEN, ("handbag",), "with a hand", "bag")


def test_words_of_grammar_may_always_be_said() -> None:
    assert may_follow(COCO, ("sheep",), "and", " she") and not may_follow(COCO, ("sheep",), "a", " sheep")
    assert may_follow(COCO, ("person",), "and", " the")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a diningtable", "dining table"),
        ("a dining-table", "dining table"),
        ("two hotdogs", "hot dog"),
        ("a hand bag", "handbag"),
        ("a skate board", "skateboard"),
        ("a surf board", "surfboard"),
    ],
)
def test_other_spellings_are_read_and_forbidden(text: str, name: str) -> None:
    assert read_mentions(text, chair_lexicon()) == ()  # as CHAIR reads
    assert [m.object for m in read_mentions(text, chair_lexicon().with_variants)] == [name]
    words = text.split(" ", 1)[1]
    assert any(words.startswith(form) for form in COCO.spellings(name))


def test_compounds_whose_plural_is_another_word() -> None:
    assert [m.object for m in read_mentions("two wine glasses", open_lexicon())] == ["wine glass"]
    assert [m.object for m in read_mentions("a man with glasses", open_lexicon())] == ["man", "glasses"]


def test_inside_other_words_nothing_is_forbidden() -> None:
    """'table' is a dining table; 'vegetable' is none."""
    assert may_follow(COCO, ("dining table",), "a vege", "table")
    assert not may_follow(COCO, ("dining table",), "a", " table")
    assert not may_follow(COCO, ("dining table",), "", "Table")


def test_words_of_other_languages_have_no_english_endings() -> None:
    german = Forbidden(Lexicon({"häuser": "häuser"}, {}, is_english=False))
    assert german.spellings("häuser") == ("häuser",)
    assert german.pieces(["häuser"], "zwei") == {" " + "häuser"[:end] for end in range(3, 7)}


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_allowed_pieces_never_spell_a_denied_object(data: st.DataObject) -> None:
    """However a spelling is cut into pieces, one of them is refused."""
    forbidden = data.draw(st.sampled_from([COCO, OPEN]))
    denied = data.draw(st.lists(st.sampled_from(sorted(forbidden.lexicon.objects)), min_size=1, max_size=3))
    form = data.draw(st.sampled_from(forbidden.spellings(denied[0])))
    before = data.draw(st.sampled_from(["", "There is a", "A dog and a"]))
    said = form if not before else f" {form}"
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(said) - 1, 1)), max_size=4)) | {len(said)})
    text, start, refused = before, 0, False
    for cut in cuts:
        piece = said[start:cut]
        # A tokenizer's pieces have their space in front, never behind or alone.
        if piece and not piece[-1].isspace():
            refused = refused or not may_follow(forbidden, tuple(denied), text, piece)
            text, start = text + piece, cut
    assert refused, (form, cuts)
