"""Labelled pictures, captions of them, the verdict fitted on those, and the diagnosis: on a tiny model."""

from __future__ import annotations

import json
import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import seewhen
from runs.tiny_checkpoint import write
from seewhen.asking.asker import Asker
from seewhen.asking.check import Checker
from seewhen.asking.options import DESCRIBE
from seewhen.errors import InvalidInput
from seewhen.runs.captioning import Captions
from seewhen.runs.diagnosis import diagnosed
from seewhen.runs.labelled import Labelled, drawn, given, labelled
from seewhen.runs.verdict_fitting import fitted
from seewhen.scenes import dataset
from seewhen.verdicts.ceiling import ceiling
from seewhen.verdicts.lexicon import chair_lexicon, lexicon_named
from seewhen.verdicts.verdict import Verdict

WORDS = ("dog", "cat", "car", "apple", "bus", "clock", "tie", "cow")


@pytest.fixture(scope="module")
def lexicon(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(WORDS))
    return str(path)


@pytest.fixture(scope="module")
def captions(tmp_path_factory: pytest.TempPathFactory, lexicon: str) -> Captions:
    loaded = seewhen.load(write(tmp_path_factory.mktemp("model")), device="cpu")
    return Captions(Asker(loaded), lexicon=lexicon, tokens=40, batch=16)


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    dice = random.Random(0)
    return [Image.frombytes("RGB", (16, 16), dice.randbytes(768)) for _ in range(48)]


@pytest.fixture(scope="module")
def believed(captions: Captions, pictures: list[Image.Image]) -> list[Labelled]:
    """Labels that are what the model answers: there could be no better witness."""
    checker = Checker(captions.asker, captions.lexicon, "asking")
    odds = [checker.odds(picture, WORDS) for picture in pictures]
    middle = {word: float(np.median([each[word] for each in odds])) for word in WORDS}
    level = float(np.median(list(middle.values())))
    return [
        Labelled(str(number), picture, frozenset(w for w in WORDS if odds[number][w] > level))
        for number, picture in enumerate(pictures)
    ]


def test_what_was_said_does_not_depend_on_the_batch(captions: Captions, believed: list[Labelled]) -> None:
    together = captions.said(believed[:6], seed=3)
    alone = [said for image in believed[:6] for said in captions.said([image], seed=3)]
    assert [(said.image, said.object, said.there) for said in together] == [
        (said.image, said.object, said.there) for said in alone
    ]
    for one, other in zip(together, alone, strict=True):
        assert one.signals.odds == pytest.approx(other.signals.odds, abs=1e-3)
    assert len({(said.image, said.object) for said in together}) == len(together) > 6
    shown = {image.name: image.objects for image in believed}
    assert all(said.there == (said.object in shown[said.image]) for said in together)


def test_greedy_captions_are_the_librarys(captions: Captions, believed: list[Labelled]) -> None:
    method = seewhen.method("confirm", "mark", lexicon=captions.lexicon, verdict="asking")
    answer = seewhen.generate(
        captions.asker.model, captions.asker.processor, believed[0].open(), DESCRIBE, method, max_new_tokens=40
    )
    said = captions.said(believed[:1], seed=None)
    told = {each["object"]: each["odds"] for each in answer.trace.told[0]["verdicts"]}
    assert {each.object: pytest.approx(each.signals.odds, abs=1e-3) for each in said} == told


def test_a_fitted_verdict_keeps_its_share_and_is_used(
    captions: Captions, believed: list[Labelled], tmp_path: Path
) -> None:
    verdict = fitted(captions, believed, keep=0.9)
    assert verdict.about["images"] == 48 and verdict.about["keep"] == 0.9
    assert verdict.written.weights["odds"] > 0 and set(verdict.asked.weights) == {"odds"}
    said = captions.said(believed, seed=0)
    true = [each for each in said if each.there]
    kept = [verdict.probability(each.signals, each.object) >= verdict.threshold for each in true]
    assert sum(kept) / len(kept) > 0.8
    path = tmp_path / "verdict.json"
    verdict.save(path)
    assert Verdict.load(path) == verdict
    text = "a dog and a cat and a car and an apple and a bus"
    checked = seewhen.check(
        captions.asker.model,
        captions.asker.processor,
        believed[0].open(),
        text,
        lexicon=captions.lexicon,
        verdict=str(path),
    )
    for each in checked.mentions:
        assert (each.verdict == "confirmed") == (each.probability >= round(verdict.asked_threshold, 4))
    plain = fitted(captions, believed, keep=0.9, offsets=False)
    assert not plain.written.offsets and not plain.asked.offsets


def test_a_model_that_answers_perfectly_can_take_back_everything(
    captions: Captions, believed: list[Labelled]
) -> None:
    found = diagnosed(captions, believed, ["sampled"])
    (one,) = found.ways.values()
    assert one.signals["odds"].auroc.value == 1.0
    assert one.invented_at_same_recall.value == 0.0
    assert one.recoverable.value == one.invented_now.value > 0.1
    assert f"{100 * one.recoverable.value:.1f}" in repr(found)
    assert json.loads(json.dumps(found.to_json()))["sampled"]["denied"]["0.9"]["value"] > 0.9


def test_a_model_that_guesses_has_nothing_to_take_back(captions: Captions, believed: list[Labelled]) -> None:
    dice = random.Random(1)
    guessed = [
        Labelled(image.name, image.picture, frozenset(w for w in WORDS if dice.random() < 0.5))
        for image in believed
    ]
    one = diagnosed(captions, guessed, ["sampled"]).ways["sampled"]
    assert one.recoverable.low < 0.1 and 0.3 < one.signals["odds"].auroc.value < 0.7


def test_diagnose_takes_pairs(captions: Captions, believed: list[Labelled]) -> None:
    pairs = [(image.open(), sorted(image.objects)) for image in believed[:12]]
    loaded = (captions.asker.model, captions.asker.processor)
    found = seewhen.diagnose(*loaded, pairs, lexicon=captions.lexicon, ways=["sampled"], tokens=40)
    assert found.images == 12
    with pytest.raises(InvalidInput, match="each is asked about"):
        seewhen.diagnose(*loaded, pairs, lexicon="open")


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals take longest."""
    monkeypatch.setattr("seewhen.runs.diagnosis.ceiling", partial(ceiling, replicates=60))


# -- where they come from ---------------------------------------------------------------------------------


def test_drawn_scenes_are_of_no_evaluation() -> None:
    ours = drawn(20)
    theirs = {scene.image for split in ("val", "test", "shifted", "train") for scene in dataset(split, 20)}
    assert theirs.isdisjoint(image.name for image in ours) and len({image.name for image in ours}) == 20
    assert ours[0].open().size == (192, 192)
    assert all(image.objects <= set(chair_lexicon().objects) for image in ours)
    assert [image.name for image in given(20)] == [image.name for image in ours]


def test_a_file_of_labels(tmp_path: Path, pictures: list[Image.Image]) -> None:
    pictures[0].save(tmp_path / "a.png")
    path = tmp_path / "labels.jsonl"
    path.write_text(
        '{"image": "a.png", "objects": ["Sofa", "traffic  light"]}\n{"image": "b.png", "objects": []}\n'
    )
    first, second = labelled(path)
    assert first.open().size == (16, 16) and second.objects == frozenset()
    assert first.named_by(lexicon_named("coco")).objects == {"couch", "traffic light"}
    assert labelled(path, limit=1) == [first]


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"image": "a.png"}', '{"image": "a.png", "objects": "dog"}', '{"image": 5, "objects": []}', "[1]"],
)
def test_bad_labels_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidInput):
        labelled(path)
    with pytest.raises(InvalidInput):
        labelled(tmp_path / "nowhere")


def test_a_folder_as_chair_takes_it(tmp_path: Path, pictures: list[Image.Image]) -> None:
    names = list(chair_lexicon().objects)
    table = {"categories": names, "images": {"7": [names.index("dog")], "9": [names.index("cat")]}}
    (tmp_path / "coco_objects.json").write_text(json.dumps(table))
    (tmp_path / "val2014").mkdir()
    for number in (7, 9):
        pictures[number].save(tmp_path / "val2014" / f"COCO_val2014_{number:012d}.jpg")
    (tmp_path / "list.txt").write_text("9\n7\n")
    found = labelled(tmp_path, str(tmp_path / "list.txt"))
    assert [(image.name, set(image.objects)) for image in found] == [("9", {"cat"}), ("7", {"dog"})]
    assert found[0].open().size == (16, 16)
