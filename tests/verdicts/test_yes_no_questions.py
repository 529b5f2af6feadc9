"""Questions about objects and the tokens that answer them."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import seewhen
from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.verdicts.lexicon import Lexicon, chair_lexicon
from seewhen.verdicts.questions import YesNo, check_template, question

WORDS = Lexicon({}, {}, mass=frozenset(["grass"]))


def words_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    vocabulary = {word: index for index, word in enumerate(["<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vase", "Is there a vase in the image?"),
        ("apple", "Is there an apple in the image?"),
        ("unicycle", "Is there a unicycle in the image?"),
        ("umbrella", "Is there an umbrella in the image?"),
        ("scissors", "Are there scissors in the image?"),
        ("grass", "Is there grass in the image?"),
    ],
)
def test_articles(name: str, expected: str) -> None:
    assert question(name, WORDS) == expected


def test_coco_is_asked_as_pope_asks() -> None:
    assert question("scissors", chair_lexicon()) == "Is there a scissors in the image?"


def test_own_templates() -> None:
    assert question("apple", WORDS, "Do you see a {object} here?") == "Do you see an apple here?"
    assert question("jeans", WORDS, "Do you see a {object} here?") == "Do you see jeans here?"
    assert question("apple", WORDS, "{object}?") == "apple?"


@pytest.mark.parametrize("template", ["", "Is it?", "{object} {object}", "{object} {x}", "{object}" + "x" * 500])
def test_bad_templates(template: str) -> None:
    with pytest.raises(InvalidMethod, match="object"):
        check_template(template)


def test_tokens_of_the_packaged_model() -> None:
    tokenizer = AutoTokenizer.from_pretrained(f"{seewhen.__path__[0]}/weights/emoji")
    found = YesNo.of(tokenizer)
    assert {tokenizer.decode([i]) for i in found.yes} == {"Yes", " Yes", " yes"}
    assert {tokenizer.decode([i]) for i in found.no} == {" No", "no", " no"}
    answer = tokenizer.encode("ASSISTANT: No", add_special_tokens=False)[-1]
    assert answer in found.no


def test_whole_words_only() -> None:
    assert YesNo.of(words_tokenizer(["Yes", "No", "yes", "no", "not", "nobody"])) == YesNo((1, 3), (2, 4))


@pytest.mark.parametrize("words", [["Yes", "Nope"], ["no"], []])
def test_a_tokenizer_without_them_is_refused(words: list[str]) -> None:
    with pytest.raises(UnsupportedModel, match="no single token"):
        YesNo.of(words_tokenizer(words))


def test_odds_are_of_probabilities() -> None:
    logits = torch.randn(3, 2, 9, dtype=torch.bfloat16)
    probabilities = logits.float().softmax(-1)
    expected = (probabilities[..., [1, 4]].sum(-1) / probabilities[..., [2]].sum(-1)).log()
    torch.testing.assert_close(YesNo((1, 4), (2,)).log_odds(logits), expected)
