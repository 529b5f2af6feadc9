"""From tokens to judged words, and from weights to places."""

from __future__ import annotations

from dataclasses import replace

import made_up
import pytest
import torch
from PIL import Image

import seewhen
from seewhen.backbones.grids import ImageGrid
from seewhen.errors import InvalidInput
from seewhen.showing.figures import case_of, case_study, similarity, source_layers
from seewhen.showing.figures.cases import method_names


def spoken(texts, objects):
    return case_of(made_up.trace_of(texts, 0), objects=objects)


def test_words_are_judged_by_chair():
    texts = [" A", " dog", " and", " two", " hot", " dogs", " near", " a", " lap", "top", ".", "</s>"]
    case = spoken(texts, ["dog", "laptop"])
    assert case.text == "A dog and two hot dogs near a laptop."
    told = [(w.text, w.kind, w.object, w.start, w.end) for w in case.words if w.object]
    assert told == [
        ("dog", "grounded", "dog", 1, 2),
        ("hot dogs", "hallucinated", "hot dog", 4, 6),
        ("laptop", "grounded", "laptop", 8, 10),
    ]
    kinds = {w.text: w.kind for w in case.words if not w.object}
    assert kinds == {
        "A": "function",
        "and": "function",
        "two": "other",
        "near": "function",
        "a": "function",
        ".": "other",
    }


def test_a_name_of_two_words_is_chosen_with_its_first():
    case = spoken([" A", " tennis", " racket", " and", " a", " phone", "."], ["tennis racket"])
    told = [(w.text, w.start, w.end, w.kind) for w in case.words if w.object]
    assert told == [("tennis racket", 1, 3, "grounded"), ("phone", 5, 6, "hallucinated")]


def test_without_truth_objects_are_just_objects():
    case = spoken([" A", " dog", "."], None)
    assert [w.kind for w in case.words] == ["function", "object", "other"]


def test_words_are_found_by_text_object_and_number():
    case = spoken([" A", " dog", " sees", " dogs", " and", " a", " Dog", "."], ["dog"])
    assert case.find("dog").start == 1 and case.find("DOG#3").start == 6 and case.find("dogs").start == 3
    for wrong in ("cat", "dog#4", "dog#0", "dog#x"):
        with pytest.raises(InvalidInput):
            case.find(wrong)


def test_a_words_own_map_is_read_when_the_word_is_fed_back():
    case = spoken([" A", " teddy", " bear", " sat"], ["teddy bear"])
    word = case.find("teddy bear")
    assert torch.equal(case.similarity(word, 2), case.trace.tensors["cosine_at_2"][3, 0])
    assert torch.equal(case.used_similarity(word.start, 2), case.trace.tensors["cosine_at_2"][1, 0])
    # Nothing was fed after the last word.
    assert case.similarity(case.find("sat"), 2) is None
    tensors = {"relevance": case.trace.tensors["relevance"]}
    plain = replace(case, trace=replace(case.trace, tensors=tensors))
    assert torch.equal(plain.similarity(word), tensors["relevance"][3, 0])
    assert plain.similarity(word, 1) is None and plain.source_layers == (0,)


def test_tiles_lie_where_they_are_and_thumbnails_are_not_used():
    tile = ImageGrid(0, 4, 2, 2, 2, box=(0.5, 0.0, 1.0, 1.0), kind="tile")
    grids = (ImageGrid(0, 0, 2, 2, 2, kind="thumbnail"), tile)
    case = spoken([" A", "."], None)
    case = replace(case, trace=replace(case.trace, grids=(grids,)), boxes={"dog": ((0.5, 0.5, 0.75, 1.0),)})
    weights = torch.tensor([9.0, 0, 0, 0, 0, 0, 1, 0])
    assert case.points_at(weights) == (0.625, 0.75)
    assert case.inside((0.625, 0.75), "dog") and not case.inside((0.8, 0.75), "dog")
    assert case.chance("dog") == 0.25
    queries = replace(case, trace=replace(case.trace, grids=((ImageGrid(0, 0, 1, 8, 8, kind="queries"),),)))
    with pytest.raises(InvalidInput, match="where its image tokens lie"):
        queries.points_at(weights)


def test_a_wide_picture_and_no_picture_can_be_drawn(tmp_path):
    from seewhen.showing.figures import save

    case = spoken([" A", " dog", " $5", " 犬", "."], None)
    for picture in (None, Image.new("RGB", (300, 100), "white")):
        save(similarity(replace(case, image=picture)), tmp_path / "a.png", dpi=50)
    with pytest.raises(InvalidInput, match="names no object"):
        similarity(spoken([" Yes", "."], None))


def test_the_data_of_maps_are_the_traces(cases):
    case = cases[0]
    data = similarity(case, [case.truth[0]], layer=3).data["words"][0]
    word = case.find(case.truth[0])
    weights = case.trace.tensors["cosine_at_3"][word.end, 0]
    shown = torch.tensor(data["maps"][0]["values"])
    assert torch.allclose(shown, weights.view(made_up.SIDE, made_up.SIDE), atol=1e-4)
    assert (data["low"], data["high"]) == (
        pytest.approx(float(weights.min())),
        pytest.approx(float(weights.max())),
    )


def test_source_layers_must_be_in_the_trace(cases):
    assert [e["layer"] for e in source_layers(cases[0], None, (0, 5)).data["layers"]] == [0, 5]
    with pytest.raises(InvalidInput, match="no similarity at layer 9"):
        source_layers(cases[0], None, (0, 9))


def test_the_case_study_shows_gates_and_heads(cases):
    case = cases[0]
    word = case.words[-2]
    data = case_study(case, word.text, layer=5, head=1).data
    assert data["tilted_layers"] == case.trace.tensors["gate"][word.start, 0].nonzero().flatten().tolist()
    before = case.trace.tensors["heads_before_at_5"][word.start, 0, 1]
    assert data["attention"]["before"]["image_share"] == pytest.approx(float(before.sum()), abs=1e-5)
    assert data["attention"]["after"]["image_share"] == pytest.approx(1.2 * float(before.sum()), abs=1e-5)
    mean = case_study(case, word.text, layer=4).data["attention"]["before"]
    kept = case.trace.tensors["attention_before"][word.start, 0, 4]
    assert mean["image_share"] == pytest.approx(float(kept.sum()), abs=1e-5)
    for wrong in ({"layer": 4, "head": 0}, {"layer": 5, "head": 2}, {"layer": 17}):
        with pytest.raises(InvalidInput):
            case_study(case, word.text, **wrong)


def test_two_settings_of_one_method_have_two_names(cases):
    def by(name, **settings):
        description = {"method": name, "parameters": seewhen.method(name, **settings).parameters()}
        return replace(cases[0], trace=replace(cases[0].trace, method=description))

    late, usual, regular = by("cai", start_layer=0.5), by("cai"), by("regular")
    assert method_names([late, regular]) == ["cai", "regular"]
    assert method_names([late, usual]) == ["cai:start_layer=0.5", "cai"]
