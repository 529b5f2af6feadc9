"""The offline lemmatizer: tokens, inflections, and the rule for -ing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seewhen.benchmarks.lemmatise import lemmatizer_named
from seewhen.errors import InvalidMethod
from seewhen.verdicts.inflections import Inflections, participles, plurals, tokenize
from seewhen.verdicts.lexicon import chair_lexicon


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("it isn't a dog.", ["it", "is", "n't", "a", "dog", "."]),
        ("the man's close-up, 10:30", ["the", "man", "'s", "close-up", ",", "10:30"]),
        ("wait... (yes)", ["wait", "...", "(", "yes", ")"]),
        ("they're can't", ["they", "'re", "ca", "n't"]),
        ("five o'clock, 1,000 kg", ["five", "o'clock", ",", "1,000", "kg"]),
        # What is no sign of its own belongs to its word: a caption of control characters is no long caption.
        ("the\x03 cat\x06\x06\x06 \x00\x00\x00\x00", ["the\x03", "cat\x06\x06\x06", "\x00\x00\x00\x00"]),
        ("30+ here… 10-25 ~~", ["30+", "here…", "10-25", "~~"]),
    ],
)
def test_tokens(text: str, tokens: list[str]) -> None:
    assert tokenize(text) == tokens


@given(st.text())
def test_tokens_lose_nothing_but_space(text: str) -> None:
    assert "".join(tokenize(text)) == "".join(text.split())


@given(st.text(st.one_of(st.sampled_from("ab19 -,:*(\n…_/+~"), st.characters(categories=["Cc", "Cf", "So", "L"]))))
def test_as_many_tokens_as_nltk_makes(text: str) -> None:
    """Its word tokenizer needs no data. Periods and quotes are left out: its sentence splitter decides there."""
    treebank = pytest.importorskip("nltk.tokenize.destructive", reason="the NLTK variant needs the package nltk")
    assert len(tokenize(text)) == len(treebank.NLTKWordTokenizer().tokenize(text))


@pytest.mark.parametrize(
    ("word", "form"),
    [("bus", "buses"), ("bench", "benches"), ("lady", "ladies"), ("knife", "knives"), ("calf", "calves"),
     ("potato", "potatoes"), ("boy", "boys"), ("giraffe", "giraffes"), ("box", "boxes")],
)  # fmt: skip
def test_plurals(word: str, form: str) -> None:
    assert form in plurals(word)


@pytest.mark.parametrize(
    ("word", "forms"),
    [("tie", ("tied", "tying")), ("seat", ("seated", "seating")), ("ship", ("shipped", "shipping")),
     ("ferry", ("ferried", "ferrying")), ("bike", ("biked", "biking")), ("bow", ("bowed", "bowing"))],
)  # fmt: skip
def test_participles(word: str, forms: tuple[str, str]) -> None:
    assert participles(word) == forms


def test_ing_names_a_thing_after_a_determiner_only() -> None:
    forms = Inflections.of({"ski"}, {"ski"})
    assert forms.lemmas(["people", "skiing"]) == ["people", "ski"]
    assert forms.lemmas(["a", "skiing", "trip"]) == ["a", "skiing", "trip"]
    assert forms.lemmas(["comfortable", "skiing"]) == ["comfortable", "skiing"]


def test_every_plural_of_the_vocabulary_is_recognised() -> None:
    lexicon = chair_lexicon()
    lemmas = lemmatizer_named("offline", lexicon)
    for term in lexicon.node:
        if " " not in term and term != "vase":  # see "kept" in the lexicon
            for form in plurals(term):
                # A plural may be a word of its own ("skis"): then it must stand for the same object.
                assert lexicon.node.get(lemmas(form)[0]) == lexicon.node[term], form


def test_unknown_lemmatizer() -> None:
    with pytest.raises(InvalidMethod, match="offline, nltk"):
        lemmatizer_named("spacy", chair_lexicon())
