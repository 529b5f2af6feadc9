"""The study of places: its tilts, its places, its resuming, its scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import seewhen
from scale.plan import filled
from seewhen.decoding.tilted_attention import Relevance
from seewhen.scenes import sample
from where import page, score
from where.pointed import Place, Pointed
from where.study import STARTS, STRENGTHS, Study, elsewhere, patches, scenes, settings


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study("scenes", scenes(2, first=20), tmp_path_factory.mktemp("study"), 2, None)


def test_patches_are_those_whose_middle_lies_in_a_box() -> None:
    whole = patches([(0.0, 0.0, 1.0, 1.0)], 144)
    assert whole.sum() == 144
    quarter = patches([(0.0, 0.0, 0.5, 0.5)], 16).view(4, 4)
    assert quarter[:2, :2].sum() == 4 == quarter.sum()
    tiny = patches([(0.30, 0.80, 0.31, 0.81)], 16).view(4, 4)  # between all middles: the patch it lies on
    assert tiny.sum() == 1 == tiny[3, 1]
    right = patches([(0.0, 0.0, 0.3, 0.2)], 144)
    assert elsewhere(right).sum() == right.sum() > 0 == (elsewhere(right) * right).sum()


def test_other_boxes_are_another_pictures_and_elsewhere_is_the_rest(study: Study) -> None:
    own, other, rest = (study.place(name, 0) for name in ("boxes", "other boxes", "elsewhere"))
    assert torch.equal(own + rest, study.place("uniform", 0)) and torch.equal(other, study.place("boxes", 1))


def _logits(study: Study, method: Any) -> torch.Tensor:
    inputs = study._inputs([(picture, study.prompt) for picture in study.pictures])
    with torch.inference_mode(), seewhen.attach(study.model, method, fast="off"):
        return study.model(**inputs).logits[:, -1]


def test_no_strength_is_no_tilt_and_an_even_place_is_the_uniform_relevance(study: Study) -> None:
    boxes = torch.stack([study.place("boxes", number) for number in range(2)])
    plain = _logits(study, seewhen.method("regular"))
    torch.testing.assert_close(
        _logits(study, Pointed(0.5, 0.0, Place(boxes.to(study.model.device)))), plain, atol=1e-5, rtol=1e-5
    )
    even = _logits(study, Pointed(0.5, 3.0, Place(torch.ones_like(boxes).to(study.model.device))))
    uniform = _logits(study, Pointed(0.5, 3.0, relevance=Relevance(form="uniform")))
    torch.testing.assert_close(even, uniform, atol=1e-5, rtol=1e-5)
    tilted = _logits(study, Pointed(0.5, 3.0, Place(boxes.to(study.model.device))))
    assert (tilted - plain).abs().max() > 0.01 < (tilted - even).abs().max()


def test_a_layer_that_points_is_not_changed_itself(study: Study) -> None:
    place = Place(torch.zeros(2, study.tokens, device=study.model.device))
    plain = _logits(study, seewhen.method("regular"))
    pointed = _logits(study, Pointed(0.85, 0.0, place, pointing=9))
    torch.testing.assert_close(pointed, plain, atol=1e-5, rtol=1e-5)
    assert (_logits(study, Pointed(0.85, 4.0, place, pointing=9)) - plain).abs().max() > 0.01


def test_one_token_ahead_without_strength_is_greedy_decoding(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("where.study.TOKENS", 10)
    regular = study._batch(range(2), {})
    ahead = study._batch(range(2), {"next": True, "strength": 0.0, "start": 0.85})
    assert [line["text"] for line in ahead] == [line["text"] for line in regular]


def test_every_setting_of_the_hypotheses_is_there() -> None:
    names = set(settings("scenes"))
    wanted = {f"{place}, {s:g} from {start:g}" for place in score._PLACES for s in STRENGTHS for start in STARTS}
    looks = ("similarity x 10", "similarity x 20", "attention of layer 9", "the next word")
    assert names == {"regular", *wanted, *(f"{look}, {s:g} from 0.85" for look in looks for s in STRENGTHS)}
    each = [settings("scenes", (strength,)) for strength in STRENGTHS]
    assert {name for part in each for name in part} == names and sum(map(len, each)) == len(names)
    boxes = settings("photo", few=True, only=("boxes",))
    assert set(boxes) == {"regular", *(name for name in names if name.startswith("boxes"))}
    third = settings("photo", only=("boxes",), starts=STARTS[:1])  # what --relevances makes
    shown = ("boxes", *looks[:2], "attention of layer 4", looks[3])
    assert set(third) == {"regular", *(f"{name}, {s:g} from 0.85" for name in shown for s in STRENGTHS)}


def test_captions_alone_are_scored(study: Study, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("where.study.TOKENS", 4)
    monkeypatch.setattr(study, "out", tmp_path)
    study.sign("where.study scenes")
    study.captions({"regular": {}, "boxes, 2 from 0.5": {}})
    out = tmp_path / "scores.json"
    monkeypatch.setattr("sys.argv", ["score", str(tmp_path), "scenes", "--out", str(out)])
    score.main()
    found = json.loads(out.read_text("utf-8"))
    assert found["questions"] == {"images": len(study.pictures), "questions": 0, "settings": []}
    assert set(found["captions"]) == {"regular", "boxes, 2 from 0.5"}


def test_it_goes_on_where_it_was_and_is_scored(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("where.study.TOKENS", 12)
    wanted: dict[str, Any] = {"regular": {}, "boxes, 2 from 0.5": {}}
    study.captions(wanted, 0.0)
    assert not list(study.out.glob("*from*"))  # no time
    study.captions(wanted)
    kept = {path.name: path.stat().st_mtime_ns for path in study.out.iterdir()}
    study.captions(wanted)
    assert kept == {path.name: path.stat().st_mtime_ns for path in study.out.iterdir()}
    truth = score.scenes_truth([picture.name for picture in study.pictures])
    tallies, told = score.caption_scores(study.out, "scenes", truth)
    assert set(tallies) == {"regular", "boxes, 2 from 0.5"}
    (same,) = score.hypotheses(tallies)["boxes less regular"]
    assert same["chair_i"] == [0, 0, 0] and same["p_chair_i"] == 1 and told["regular"]["objects"][0] >= 0


def test_captions_are_counted_as_chair_counts() -> None:
    scene = sample("shifted", 20)
    truth = {scene.image: frozenset(scene.names)}
    there = scene.names[0]
    absent = next(name for name in ("elephant", "toilet", "pizza") if name not in scene.names)
    counted = score.tally([{"image": scene.image, "text": f"A {there} and a {absent} beside a {there}."}], truth)
    one = {name: float(values[0, 0]) for name, values in counted.counts.items()}
    assert one == {
        "captions": 1, "inventing": 1, "invented": 1, "said": 3, "named": 1, "shown": len(scene.names),
    }  # fmt: skip


def test_questions_that_a_place_answers_are_told_apart() -> None:
    """Odds that rise by one only with the right place, and only for what is there."""
    asked = []
    for number in range(30):
        for there in (True, False):
            line = {"image": str(number), "object": "dog", "there": there, "regular": 0.1 * (number % 3)}
            for setting in score.settings():
                for name in ("right", "wrong", "uniform"):
                    line[f"{name}, {setting}"] = line["regular"] + (name == "right" and there)
            asked.append(line)
    found = score.question_scores(asked)
    one = found["settings"][0]
    assert one["there"]["right less wrong"] == pytest.approx([1, 1, 1]) and one["p_right_less_wrong"] < 0.01
    assert one["not there"]["any place less regular"] == pytest.approx([0, 0, 0])
    assert found["regular"]["auroc"][0] == 0.5 and one["auroc"]["right"][0] == 1.0
    assert one["auroc, right less wrong"][0] == pytest.approx(0.5)


def test_the_page_says_what_the_results_say() -> None:
    text = page.PAGE.read_text("utf-8")
    assert filled(text, page.tables()) == text
    for found in page.results().values():
        assert {name.rpartition(", ")[2] for name in found["captions"]} <= {"regular", *score.settings()}
        assert {"command", "machine", "torch", "transformers"} <= set(found["made"])


def test_what_the_page_says_of_boxes_is_what_was_measured() -> None:
    section = page.PAGE.read_text("utf-8").partition("## Can the place matter at all?")[2].partition("\n## ")[0]
    text = " ".join(section.split())
    found = page.results()["scores-packaged-gpu"]
    tested = found["hypotheses"]
    beside, plain = (
        {line["of"]: line for line in tested[pair]} for pair in ("boxes less other boxes", "boxes less regular")
    )
    apart, lost = beside["boxes, 6 from 0.5"], plain["boxes, 6 from 0.5"]
    assert "CHAIR_I by {:.1f} points ({:.1f} to {:.1f})".format(*lost["chair_i"]) in text
    assert f"cost {-lost['recall'][0]:.1f} points of recall" in text
    assert "CHAIR_I is {:.1f} ({:.1f} to {:.1f}) higher".format(*apart["chair_i"]) in text
    assert "so is recall, by {:.1f} ({:.1f} to {:.1f})".format(*apart["recall"]) in text
    assert apart["p_chair_i"] < 0.05 > apart["p_recall"]
    middle = beside["boxes, 4 from 0.5"]
    assert "({:+.1f}, {:.1f} to {:.1f}; CHAIR_I {:+.1f}, p = {:.2f})".format(
        *middle["recall"], middle["chair_i"][0], middle["p_chair_i"]
    ) in text and middle["p_recall"] < 0.05  # fmt: skip

    def f1(setting: str) -> float:
        right, recall = 100 - found["captions"][setting]["chair_i"][0], found["captions"][setting]["recall"][0]
        return 2 * right * recall / (right + recall)

    assert f"({f1('boxes, 6 from 0.5'):.1f} and {f1('other boxes, 6 from 0.5'):.1f})" in text
    # Nowhere do the boxes help where CAI acts: lower CHAIR_I than other boxes or than none, at no less recall.
    every = [*page.results().values(), *page.results(page.RUNGS).values()]
    for pair in ("boxes less other boxes", "boxes less regular"):
        late = [line for one in every for line in one["hypotheses"][pair] if line["of"].endswith("0.85")]
        assert len({id(one) for one in every}) == 11 and len(late) >= 12
        assert all(line["chair_i"][0] > 0 or line["p_chair_i"] >= 0.05 for line in late)
        assert all(line["recall"][0] < 0 or line["p_recall"] >= 0.05 for line in late)


def test_what_the_page_says_of_relevances_is_what_was_measured() -> None:
    text = " ".join(page.PAGE.read_text("utf-8").split())
    every = page.results()
    photo = every["scores-photo-relevances"]
    names = settings("photo", only=("boxes",), starts=STARTS[:1])
    assert set(photo["captions"]) == set(names)
    # The pictures are those of the other runs: what is in both scores the same, on another machine too.
    for other in ("scores-photo-cpu", "scores-photo"):
        shared = every[other]["captions"].keys() & names.keys()
        assert len(shared) > 1 and all(every[other]["captions"][n] == photo["captions"][n] for n in shared)
    beside, plain = ("relevance less boxes", "relevance less regular")
    for found in every.values():  # no relevance lowers CHAIR_I measurably, beside the boxes or beside none
        for line in (*found["hypotheses"][beside], *found["hypotheses"][plain]):
            assert line["p_chair_i"] >= 0.05 or line["chair_i"][0] > 0
    looks = {line["of"] for line in photo["hypotheses"][beside]}
    assert len(looks) == 12 and {line["of"] for line in photo["hypotheses"][plain]} == looks

    def f1(setting: str) -> float:
        right, recall = 100 - photo["captions"][setting]["chair_i"][0], photo["captions"][setting]["recall"][0]
        return 2 * right * recall / (right + recall)

    own, boxes = sorted(map(f1, looks)), sorted(f1(name) for name in names if name.startswith("boxes"))
    assert (
        f"({own[0]:.1f} to {own[-1]:.1f} beside {f1('regular'):.1f}; the boxes {boxes[0]:.1f} to {boxes[-1]:.1f})"
        in text
    )
    assert own[-1] < f1("regular") and all(line["recall"][0] < 0 for line in photo["hypotheses"][plain])
    one, other = (
        next(line for line in photo["hypotheses"][pair] if line["of"] == "similarity x 20, 6 from 0.85")
        for pair in (beside, plain)
    )
    assert "CHAIR_I {:.1f} ({:.1f} to {:.2f}), recall {:+.1f} ({:.1f} to {:.1f}), neither of which counts".format(
        *one["chair_i"], *one["recall"]
    ) in text and f"(p = {one['p_chair_i']:.2f} and {one['p_recall']:.2f})" in text  # fmt: skip
    assert one["p_chair_i"] >= 0.05 <= one["p_recall"]
    assert "CHAIR_I is {:.1f} ({:.1f} to {:+.1f})".format(*other["chair_i"]) in text
    assert f"for {-other['recall'][0]:.1f} points of recall." in text
    (lost,) = (line for line in photo["hypotheses"][plain] if line["p_recall"] < 0.05)
    assert lost["of"] == "the next word, 6 from 0.85"
    assert "strength 6 ({:.1f} points of recall, {:.1f} to {:.1f})".format(*lost["recall"]) in text


def test_what_the_page_says_of_questions_to_rungs_is_what_was_measured() -> None:
    text = " ".join(page.PAGE.read_text("utf-8").split())
    ends = {}
    for name, found in page.results(page.RUNGS).items():
        gaps = [line["auroc, right less regular"][0] for line in found["questions"]["settings"]]
        ends[name.removeprefix("scores-")] = (found["questions"]["regular"]["auroc"][0], min(gaps), max(gaps))
    able = [each for each in ends.values() if each[0] > 0.8]
    assert len(able) == 2 and all(low > 0 for _, low, _ in able)
    assert f"up by at most {max(high for *_, high in able):.3f} on the two that can answer" in text
    hardly = [ends.pop(name) for name in ("many-mild-brief.2", "many-strong-brief.2")]
    assert all(low > 0 for _, low, _ in hardly)
    assert f"up by at most {max(high for *_, high in hardly):.2f} on two that hardly can" in text
    area, low, high = ends["none-long.1"]
    assert f"from {low:+.2f} to {high:+.2f} on a third ({area:.2f}".replace("(0", "(") in text
    area, low, high = ends["many-mild-long-noisy.1"]
    assert high < 0 and f"down by up to {-low:.2f} on a fourth ({area:.2f})".replace("(0", "(") in text


def test_results_are_of_the_settings_that_were_written_down() -> None:
    folder = Path(__file__).parents[2] / "benchmarks" / "where"
    written = (folder / "README.md").read_text("utf-8")
    assert "strengths 2, 4 and 6 from 0.85 and from 0.5" in written and {*STRENGTHS} == {2.0, 4.0, 6.0}
    assert {*STARTS} == {0.85, 0.5}
