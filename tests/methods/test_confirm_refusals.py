"""Confirm: what it refuses, and what it warns of."""

from __future__ import annotations

import math
import warnings

import pytest

import seewhen
import tiny
from seewhen.backbones.backbone import Backbone
from seewhen.errors import InvalidInput, InvalidMethod, SeewhenError, UnsupportedMode, UnsupportedModel
from seewhen.methods.confirm_words import Words
from seewhen.scenes import render, sample
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.questions import QUESTION
from wordy import WordyTokenizer

TOKENIZER = WordyTokenizer()


def test_beams_are_refused():
    with pytest.raises(UnsupportedMode, match="beam search"):
        seewhen.generate(
            *seewhen.load("packaged"), render(sample("shifted", 0)), "What is it?", "confirm", num_beams=2
        )


def test_without_a_tokenizer_it_says_so():
    with pytest.raises(InvalidMethod, match="needs its tokenizer"):
        seewhen.attach(tiny.model("llava"), "confirm")


def test_a_tokenizer_without_yes_and_no():
    with pytest.raises(UnsupportedModel, match="no single token for 'yes'"):
        seewhen.method("confirm", lexicon="coco").prepare(WordyTokenizer(without=("yes", "Yes")))


@pytest.mark.parametrize(
    "parameters",
    [
        {"threshold": math.nan},
        {"retries": -1},
        {"budget": 0.5},
        {"budget": math.inf},
        {"budget": math.nan},
        {"when": math.nan},
        {"doubt": "x"},
        {"question": "Is it there?"},
        {"on_denied": "x"},
    ],
)
def test_bad_parameters(parameters):
    with pytest.raises(InvalidMethod):
        seewhen.method("confirm", **parameters)


def test_a_lexicon_and_a_verdict_that_are_not_there(tmp_path):
    with pytest.raises(InvalidInput, match="no lexicon"):
        seewhen.method("confirm", lexicon="nosuch").prepare(TOKENIZER)
    broken = tmp_path / "verdict.json"
    broken.write_text("[]")
    method = seewhen.method("confirm", lexicon="coco", verdict=str(broken)).prepare(TOKENIZER)
    with pytest.raises(SeewhenError, match="not a verdict"):
        method.parts(Backbone.of(tiny.model("llava")))


def test_the_tokens_of_a_question_follow_the_image():
    words = Words.of(TOKENIZER, lexicon_named("coco"), QUESTION).on((tiny.IMAGE,))
    assert TOKENIZER.decode(words.question("cat")) == "is there a cat in the image ?"


def test_asking_alone_is_warned_of_where_it_is_known_to_be_weak():
    """The packaged model answers questions about as badly as it writes; with its fit nothing is said."""
    model, processor = seewhen.load("packaged")
    backbone = Backbone.of(model)
    with pytest.warns(UserWarning, match=r"answers tell true from invented objects badly \(AUROC 0\.\d\d"):
        seewhen.method("confirm:verdict=asking").prepare(processor.tokenizer).parts(backbone)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seewhen.method("confirm").prepare(processor.tokenizer).parts(backbone)
