"""`check`: its odds are those of the plain question and of `confirm`; every mention has a verdict; bounds hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import seewhen
from runs.tiny_checkpoint import write
from seewhen.asking.asker import Asker
from seewhen.asking.check import MOST_OBJECTS, Checker, Inquiry
from seewhen.backbones.loading import Loaded
from seewhen.backbones.prompts import chat_prompt, model_inputs
from seewhen.errors import InvalidInput, UnsupportedModel
from seewhen.scenes import render, sample
from seewhen.verdicts.lexicon import lexicon_named
from seewhen.verdicts.questions import YesNo
from seewhen.verdicts.reader import MOST_WORDS
from seewhen.verdicts.verdict import Logistic, Verdict, sigmoid

TEXT = "A dog and two cats. The dog is near a car, and an apple."


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return seewhen.load(write(tmp_path_factory.mktemp("model")), device="cpu")


@pytest.fixture(scope="module")
def image() -> Image.Image:
    return render(sample("test", 0))


def plain_odds(loaded: Loaded, image: Image.Image, question: str) -> float:
    """One prompt, one forward pass of the model alone."""
    model, processor = loaded
    inputs = model_inputs(model, processor, [[image]], [chat_prompt(processor, question, 1)])
    with torch.inference_mode():
        return float(YesNo.of(processor.tokenizer).log_odds(model(**inputs).logits[0, -1]))


def test_odds_are_those_of_the_plain_question(loaded: Loaded, image: Image.Image) -> None:
    checked = seewhen.check(*loaded, image, TEXT, lexicon="coco")
    assert [(each.object, each.text, each.sentence) for each in checked.mentions] == [
        ("dog", "dog", 0),
        ("cat", "cats", 0),
        ("dog", "dog", 1),
        ("car", "car", 1),
        ("apple", "apple", 1),
    ]
    for each in checked.mentions:
        article = "an" if each.object == "apple" else "a"
        expected = plain_odds(loaded, image, f"Is there {article} {each.object} in the image?")
        assert each.odds == pytest.approx(expected, abs=2e-4)
        assert each.probability == pytest.approx(sigmoid(expected), abs=2e-4)
        assert each.verdict == ("confirmed" if expected >= 0 else "denied")
        assert TEXT[each.start : each.end] == each.text


def test_many_questions_go_in_parts_and_read_the_image_once(loaded: Loaded, image: Image.Image) -> None:
    passes: list[int] = []
    hook = loaded.model.model.vision_tower.register_forward_hook(lambda *_: passes.append(1))
    checker = Checker(Asker(loaded), lexicon="coco")
    names = checker.words.lexicon.objects
    try:
        odds = checker.odds(image, names)
    finally:
        hook.remove()
    assert len(passes) == 1 and list(odds) == list(names) and len(names) == 80
    for name in (names[0], names[40], names[79]):
        assert odds[name] == pytest.approx(checker.odds(image, [name])[name], abs=1e-5)


def test_the_same_odds_as_confirm(image: Image.Image) -> None:
    model, processor = seewhen.load("packaged", device="cpu")
    said = seewhen.generate(
        model, processor, image, "Please describe this image in detail.", "confirm:mark", max_new_tokens=24
    )
    checked = seewhen.check(model, processor, image, said.text, verdict="asking")
    told = said.trace.told[0]["verdicts"]
    assert told and [each.object for each in checked.mentions] == [each["object"] for each in told]
    for each, known in zip(checked.mentions, told, strict=True):
        assert each.odds == pytest.approx(known["odds"], abs=1e-3)


def test_verdict_files_and_thresholds(loaded: Loaded, image: Image.Image, tmp_path: Path) -> None:
    never = tmp_path / "never.json"
    Verdict(asked=Logistic(-9.0, {"odds": 0.0}, {"dog": 18.0})).save(never)
    checked = seewhen.check(*loaded, image, TEXT, lexicon="coco", verdict=str(never))
    assert checked.denied == ("cat", "car", "apple") and checked.having("confirmed") == ("dog",)
    assert "denied: cat, car, apple" in repr(checked) and len(repr(checked)) < 80
    every = seewhen.check(*loaded, image, TEXT, lexicon="coco", verdict=str(never), threshold=-10.0)
    assert every.denied == ()


def test_a_text_without_objects_asks_nothing(loaded: Loaded, image: Image.Image) -> None:
    checked = seewhen.check(*loaded, image, "It is very nice and not at all dark.")
    assert checked.mentions == () and checked.to_json()["mentions"] == []
    assert seewhen.check(*loaded, image, "").mentions == ()


@pytest.mark.parametrize("picture", [None, [], [None]])
def test_without_an_image_there_is_nothing_to_ask(loaded: Loaded, picture: object) -> None:
    with pytest.raises(InvalidInput, match="no image"):
        seewhen.check(*loaded, picture, TEXT)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"text": None}, "one string, not NoneType"),
        ({"text": ["A dog."]}, "one string, not list"),
        ({"text": b"A dog."}, "one string, not bytes"),
        ({"threshold": "1"}, "threshold is not a number"),
        ({"threshold": float("nan")}, "threshold is not a number"),
        ({"image": np.zeros((8, 8, 3), np.uint8)}, "not of type ndarray"),
        ({"image": [3]}, "not of type int"),
    ],
)
def test_other_kinds_of_things_are_refused_in_one_line(
    loaded: Loaded, image: Image.Image, changed: dict[str, object], told: str
) -> None:
    given: dict[str, object] = {"image": image, "text": TEXT, **changed}
    with pytest.raises(InvalidInput, match=told):
        seewhen.check(*loaded, given.pop("image"), given.pop("text"), **given)  # type: ignore[arg-type]


def test_several_images(loaded: Loaded, image: Image.Image) -> None:
    one = seewhen.check(*loaded, image, TEXT, lexicon="coco")
    two = seewhen.check(*loaded, [image, render(sample("test", 1))], TEXT, lexicon="coco")
    assert [each.odds for each in one.mentions] != [each.odds for each in two.mentions]


def test_long_texts_are_bounded(loaded: Loaded, image: Image.Image) -> None:
    with pytest.raises(InvalidInput, match="10,000 words"):
        seewhen.check(*loaded, image, "a dog " * MOST_WORDS)
    with pytest.raises(InvalidInput, match="English"):
        seewhen.check(*loaded, image, "На фото собака и кошка рядом с машиной.")
    names = [name for name in lexicon_named("open").objects if " " not in name][: MOST_OBJECTS + 50]
    inquiry = Inquiry.of(" ".join(f"There is a {name}." for name in names), lexicon_named("open"))
    assert len(inquiry.objects) == MOST_OBJECTS and len(inquiry.mentions) > MOST_OBJECTS
    (note,) = inquiry.notes
    assert f"first {MOST_OBJECTS}" in note


def test_more_than_the_bound_is_not_asked(loaded: Loaded, image: Image.Image, monkeypatch) -> None:
    monkeypatch.setattr("seewhen.asking.check.MOST_OBJECTS", 2)
    checked = seewhen.check(*loaded, image, TEXT, lexicon="coco")
    assert checked.having("not asked") == ("car", "apple") and checked.notes
    assert all(each.odds is None for each in checked.mentions if each.object in ("car", "apple"))


def test_a_tokenizer_without_yes_is_refused(loaded: Loaded, image: Image.Image) -> None:
    from copy import copy

    class Mute:
        pad_token_id, chat_template, all_special_ids = 0, None, ()

        def encode(self, *_: object, **__: object) -> list[int]:
            return [0, 1]

        def convert_tokens_to_ids(self, token: str) -> None:
            return None

    processor = copy(loaded.processor)
    processor.tokenizer = Mute()
    with pytest.raises(UnsupportedModel, match="yes"):
        seewhen.check(loaded.model, processor, image, TEXT)
