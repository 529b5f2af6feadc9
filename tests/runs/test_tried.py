"""The summary of `seewhen try`: what is real is called real, what is chance is called chance."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from seewhen.runs.evaluate import Ask
from seewhen.runs.folders import Photo
from seewhen.runs.labels import reader_for
from seewhen.runs.store import Record, Run
from seewhen.runs.tried import Outcome, outcome
from seewhen.runs.tried_wording import CHANCE, summary
from seewhen.runs.trying import Judging, Trial, Tries
from seewhen.showing.viewer.tried import write_tried

PICTURES = 20
TRUTH = {f"{n}.png": frozenset({"dog"}) for n in range(PICTURES)}


def tries(tmp_path: Path, pictures: int = PICTURES, **answers: list[str]) -> Tries:
    """Methods with one answer for each picture; the model denies every cat and says regular's words with doubt."""
    photos = tuple(Photo(f"{n}.png", tmp_path / f"{n}.png") for n in range(pictures))
    records = {
        name: {p.name: Record(p.id, 0, p.name, text, tokens=4) for p, text in zip(photos, texts, strict=False)}
        for name, texts in answers.items()
    }
    timing = {name: ({"samples": 1, "tokens": 10, "seconds": 1.0 + place},) for place, name in enumerate(answers)}
    runs = {
        name: Run(tmp_path, {}, {}, tuple(found.values()), None, timing[name]) for name, found in records.items()
    }
    verdicts = {"cat": ("denied", {"odds": -2.0, "probability": 0.1, "entropy": 1.0}), "dog": ("confirmed", {})}
    asked = {
        photo.name: {
            name: Record(f"{photo.id}/{name}", 0, photo.name, verdict, facts=facts)
            for name, (verdict, facts) in verdicts.items()
            if any(name in found[photo.name].answer for found in records.values())
        }
        for photo in photos
    }
    trial = Trial(Ask("try"), judging=Judging("coco"))
    return Tries(trial, photos, {}, runs, records, asked, next(iter(runs.values())))


def found(tmp_path: Path, labels: bool = False, pictures: int = PICTURES, **answers: list[str]) -> Outcome:
    truth = {name: objects for name, objects in TRUTH.items() if labels}
    return outcome(tries(tmp_path, pictures, **answers), truth, reader_for("coco"))


def told(of: Outcome, method: str) -> list[str]:
    return [sentence for sentence in summary(of)[1:] if f"`{method}`" in sentence]


BOTH, ONE = "A dog and a cat.", "A dog."


def test_a_large_effect_is_real(tmp_path: Path) -> None:
    of = found(tmp_path, labels=True, regular=[BOTH] * PICTURES, careful=[ONE] * PICTURES)
    assert summary(of)[0] == "On these 20 labelled pictures `careful` really invents less than regular."
    assert "a real difference" in told(of, "careful")[-1] and CHANCE not in " ".join(summary(of))
    careful = of.methods[1]
    assert careful.counts["gone"] == careful.counts["gone_denied"] == PICTURES and careful.cost.ratio == 2
    assert of.methods[0].shares["denied"].value == 50
    assert summary(of)[1].startswith(
        "By the labels 50.0 % of what regular decoding names is invented; it finds 100.0 %"
    )


def test_a_small_one_cannot_be_told_from_chance(tmp_path: Path) -> None:
    almost = [ONE, *[BOTH] * (PICTURES - 1)]
    of = found(tmp_path, labels=True, regular=[BOTH] * PICTURES, almost=almost)
    assert summary(of)[0] == "On these 20 labelled pictures no method really invents less than regular."
    assert CHANCE in told(of, "almost")[-1] and "a real difference" not in " ".join(summary(of))


def test_harm_is_said_too(tmp_path: Path) -> None:
    of = found(tmp_path, labels=True, regular=[ONE] * PICTURES, wild=[BOTH] * PICTURES)
    assert summary(of)[0].endswith("no method really invents less than regular; `wild` invents more.")


def test_silence_has_its_price(tmp_path: Path) -> None:
    of = found(tmp_path, labels=True, regular=[BOTH] * PICTURES, silent=["Nothing."] * PICTURES)
    assert (
        "`silent` really invents less than regular (`silent` at the price of objects not named)" in summary(of)[0]
    )


@pytest.mark.parametrize("labels", [False, True])
def test_one_method_is_held_against_nothing(tmp_path: Path, labels: bool) -> None:
    of = found(tmp_path, labels=labels, regular=[BOTH] * PICTURES)
    told = "Only regular decoding was tried on these 20 pictures: name a method to hold against it."
    assert summary(of)[0] == told


def test_small_words_make_no_difference(tmp_path: Path) -> None:
    of = found(tmp_path, regular=[BOTH] * PICTURES, same=["The dog, and the cat!"] * PICTURES)
    assert summary(of)[0] == "No method changes a word that matters on these 20 pictures."
    assert of.methods[1].counts["changed"] == 0
    assert any("the model denies 20 of the 40 objects" in sentence for sentence in summary(of))
    assert any("--objects" in sentence for sentence in summary(of))


@pytest.mark.parametrize("count", [1, 4])
def test_few_pictures(tmp_path: Path, count: int) -> None:
    of = found(tmp_path, pictures=count, regular=[BOTH] * count, careful=[ONE] * count)
    assert not of.methods[1].shares and of.methods[1].denied is None
    assert "may be chance" in " ".join(summary(of))
    assert ("on this picture" if count == 1 else "on these 4 pictures") in summary(of)[0]


@pytest.mark.parametrize("count", [4, 5])
def test_the_page_gives_intervals_where_the_words_say_so(tmp_path: Path, count: int) -> None:
    of = found(
        tmp_path, labels=True, pictures=count, regular=[BOTH] * count, careful=[ONE, BOTH] * (count // 2) + [ONE]
    )
    for photo in of.tries.photos:
        Image.new("RGB", (8, 8)).save(photo.path)
    write_tried(tmp_path / "page.html", of, list(summary(of)), {}, reader_for("coco"))
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    table = page[page.index("<tbody") : page.index("</tbody>")]
    assert (re.search(r"\(\d+ to \d+\)|no variation", table) is not None) is (count == 5)


def test_pictures_in_dispute_come_first(tmp_path: Path) -> None:
    regular = [ONE, BOTH, ONE]
    of = found(tmp_path, pictures=3, regular=regular, other=[ONE, ONE, "Nothing."])
    assert [seen.photo.name for seen in of.pictures] == ["1.png", "2.png", "0.png"]
    first = of.pictures[0]
    assert first.split == ("cat",) and first.doubted[0].object == "cat" and first.doubted[0].doubt > 0.6
