"""CHAIR: mentions, the rules around them, ground truth and metrics."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seewhen.benchmarks.base import Options
from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.chair.coco import image_key, load_objects
from seewhen.benchmarks.chair.files import chair_image_lists
from seewhen.errors import InvalidInput
from seewhen.verdicts.lexicon import chair_lexicon
from seewhen.verdicts.reader import merged

READER = CaptionReader()
LEXICON = chair_lexicon()


def test_the_vocabulary_is_the_published_one(shared) -> None:
    published = {}
    for line in (shared / "chair" / "synonyms.txt").read_text().splitlines():
        terms = line.strip().split(", ")
        published.update(dict.fromkeys(terms, terms[0]))
    never = {" motor bike", " cheesecake", "iPhone", "stove top oven"}
    assert {term: name for term, name in published.items() if term not in never} == dict(LEXICON.node)
    assert len(LEXICON.objects) == 80


@pytest.mark.parametrize("lemmatizer", ["offline", "nltk"])
def test_vector_14(lemmatizer: str, request: pytest.FixtureRequest) -> None:
    if lemmatizer == "nltk":
        request.getfixturevalue("nltk_data")
    caption = "A man on a motor bike near a train track with two hot dogs and a baby elephant"
    assert CaptionReader(lemmatizer).objects(caption) == ("person", "hot dog", "elephant")


@pytest.mark.parametrize(
    ("caption", "objects"),
    [
        ("The seat of the toilet is up, another seat is not.", ["toilet"]),
        ("A toilet seat.", ["toilet"]),
        ("A seat and a stool.", ["chair", "chair"]),
        ("Two wine glasses on the dining table", ["wine glass", "dining table"]),
        ("A passenger jet above a passenger train and a passenger", ["airplane", "train", "person"]),
        ("Runners near home plate, a bow tie", ["tie"]),
        ("An adult bear with its baby cub", ["bear"]),
        ("Her cheesecake, his iPhone", []),
        ("Knives, mice, geese, buses and potted plants", ["knife", "mouse", "bird", "bus", "potted plant"]),
        ("A TV and two televisions; it isn't a laptop.", ["tv", "tv", "laptop"]),
        ("A person seated in the seating area, tied down", ["person", "chair", "tie"]),
        ("Two men look at vases", []),  # as the NLTK tradition has it
        ("A man on skis.The dog waits!A car", ["person", "skis", "dog", "car"]),  # glued sentences
        ("", []),
    ],
)
def test_rules_and_quirks(caption: str, objects: list[str]) -> None:
    assert list(READER.objects(caption)) == objects


def test_metrics_by_hand() -> None:
    truth = {"1": frozenset({"dog", "cat"}), "2": frozenset({"car"})}
    score = Chair(truth, ("1", "2")).score({"1": "A dog, a dog and a horse.", "2": "A car"})
    assert score.metrics == pytest.approx(
        {
            "chair_s": 50.0,
            "chair_i": 25.0,
            "chair_i_unique": 100 / 3,
            "recall": 100 * 2 / 3,
            "precision": 100 * 2 / 3,
            "f1": 100 * 2 / 3,
            "length": (9 + 2) / 2,
            "words": (7 + 2) / 2,
        }
    )
    assert [row.right for row in score.rows] == [0, 1]
    assert score.rows[0].detail["hallucinated"] == ["horse"]


def test_a_caption_without_objects_divides_by_nothing() -> None:
    metrics = Chair({"1": frozenset()}, ("1",)).score({"1": "Blue sky."}).metrics
    assert metrics["chair_i"] == metrics["recall"] == metrics["precision"] == metrics["f1"] == 0


def test_an_unknown_image_is_an_error_and_not_an_empty_one() -> None:
    with pytest.raises(InvalidInput, match="Nothing is known about image 7"):
        Chair({"1": frozenset()}, ("7",)).score({"7": "A dog"})


WORDS = st.sampled_from(
    [*sorted(t for t in LEXICON.node if " " not in t), "the", "blue", "of", ".", "baby", "seat"]
)
CAPTIONS = st.lists(WORDS, max_size=25).map(" ".join)
TRUTH = st.frozensets(st.sampled_from(LEXICON.objects), max_size=6)


@given(CAPTIONS, TRUTH)
def test_bounds(caption: str, shown: frozenset[str]) -> None:
    metrics = Chair({"1": shown}, ("1",)).score({"1": caption}).metrics
    for name in ("chair_s", "chair_i", "recall", "precision", "f1"):
        assert 0 <= metrics[name] <= 100
    assert (metrics["chair_s"] == 0) == (metrics["chair_i"] == 0)
    assert metrics["length"] <= len(caption.split())
    assert metrics["words"] == sum(word != "." for word in caption.split())
    assert metrics["chair_i_unique"] == pytest.approx(100 - metrics["precision"] if READER.objects(caption) else 0)


@given(CAPTIONS, TRUTH, st.sampled_from(LEXICON.objects))
def test_knowing_more_of_the_image_never_raises_chair(caption: str, shown: frozenset[str], more: str) -> None:
    before, after = (Chair({"1": t}, ("1",)).score({"1": caption}).metrics for t in (shown, shown | {more}))
    assert after["chair_i"] <= before["chair_i"] and after["chair_s"] <= before["chair_s"]
    assert after["precision"] >= before["precision"]


@given(CAPTIONS, TRUTH, st.sampled_from(["zebra", "giraffe", "broccoli"]))
def test_one_more_invented_object_never_lowers_chair(caption: str, shown: frozenset[str], thing: str) -> None:
    shown = shown - {thing}
    before, after = (
        Chair({"1": shown}, ("1",)).score({"1": text}).metrics for text in (caption, f"{caption} . {thing}")
    )
    assert after["chair_i"] >= before["chair_i"] and after["chair_s"] == 100
    assert after["recall"] == before["recall"]


@given(st.lists(WORDS), st.text())
def test_any_text_can_be_read(words: list[str], text: str) -> None:
    for caption in (" ".join(words), text):
        mentions = READER.read(caption)
        assert set(mentions.objects) <= set(LEXICON.objects)
        assert len(mentions.objects) <= mentions.tokens


@given(st.lists(st.sampled_from(["a", "b", "c"])))
def test_pairs_merge_from_the_left(words: list[str]) -> None:
    runs = list(merged(words, {"a b": "X", "b c": "Y"}, 2))
    terms = " ".join(term for term, _, _ in runs)
    assert terms.replace("X", "a b").replace("Y", "b c").split() == words
    assert "a b" not in terms
    assert [first for _, first, _ in runs] + [len(words)] == [0] + [end for _, _, end in runs]


def test_ground_truth_from_coco_files(write) -> None:
    categories = [{"id": 1, "name": "person"}, {"id": 62, "name": "chair"}]
    instances = {
        "categories": categories,
        "images": [{"id": 9}, {"id": 10}],
        "annotations": [{"image_id": 9, "category_id": 62}],
    }
    captions = {
        "images": [{"id": 9}],
        "annotations": [{"image_id": 9, "caption": "A kitten under a seat."}],
    }
    paths = [write("instances.json", json.dumps(instances)), write("captions.json", json.dumps(captions))]
    assert load_objects(paths, LEXICON, READER.objects) == {"9": {"chair", "cat"}, "10": frozenset()}


def test_ground_truth_from_a_table(tmp_path) -> None:
    path = tmp_path / "objects.json.gz"
    table = {"categories": ["cat", "dog"], "images": {"9": [1], "COCO_val2014_000000000010.jpg": [0, 1]}}
    path.write_bytes(gzip.compress(json.dumps(table).encode()))
    assert load_objects([path], LEXICON, READER.objects) == {"9": {"dog"}, "10": {"cat", "dog"}}


@pytest.mark.parametrize(
    "content", ["[]", '{"a": 1}', '{"annotations": [{"image_id": 1}]}', '{"images": {"1": [5]}}']
)
def test_other_json_is_refused(write, content: str) -> None:
    with pytest.raises(InvalidInput, match=r"objects\.json"):
        load_objects([write("objects.json", content)], LEXICON, READER.objects)


def test_categories_are_read_as_words_are(write) -> None:
    """ "Cat" and "kitten" are cats: else every caption with a cat would be wrong."""
    table = {"categories": ["Cat", "kitten"], "images": {"1": [0], "2": [1], "3": [" DOG "]}}
    found = load_objects([write("objects.json", json.dumps(table))], LEXICON, READER.objects)
    assert found == {"1": {"cat"}, "2": {"cat"}, "3": {"dog"}}
    for wrong in ("-1", "true"):
        with pytest.raises(InvalidInput, match=r"objects\.json has another form"):
            content = f'{{"categories": ["cat", "dog"], "images": {{"1": [{wrong}]}}}}'
            load_objects([write("objects.json", content)], LEXICON, READER.objects)


@pytest.mark.parametrize("categories", [[], [{"id": 2, "name": "cat"}], [{"id": "1", "name": "cat"}]])
def test_an_annotation_of_no_known_category_is_refused(write, categories: list) -> None:
    content = {"categories": categories, "annotations": [{"image_id": 1, "category_id": 1}]}
    with pytest.raises(InvalidInput, match="category_id 1 is none of its categories"):
        load_objects([write("instances.json", json.dumps(content))], LEXICON, READER.objects)


def _scored(write, truth: dict, captions: dict[str, str]) -> dict[str, float]:
    lines = "\n".join(json.dumps({"image": image, "caption": text}) for image, text in captions.items())
    asked, given = Chair.read(write("captions.jsonl", lines), [write("truth.json", json.dumps(truth))], Options())
    return dict(asked.score(given).metrics)


def test_objects_that_chair_does_not_know_are_refused(write) -> None:
    truth = {"categories": ["cat", "aerosol can"], "images": {"1": [0], "2": [1]}}
    with pytest.raises(InvalidInput, match=r"truth\.json: 'aerosol can' is none of CHAIR's 80 objects"):
        _scored(write, truth, {"1": "A cat."})


def test_pictures_of_one_number_are_no_two_pictures(write) -> None:
    """Both would be judged by the objects of both."""
    truth = {"categories": ["cat", "dog"], "images": {"cats/1.jpg": [0], "dogs/1.jpg": [1]}}
    with pytest.raises(InvalidInput, match=r"cats/1\.jpg and dogs/1\.jpg name the same picture"):
        _scored(write, truth, {"cats/1.jpg": "A dog."})
    with pytest.raises(InvalidInput, match=r"captions: 1 and COCO_val2014_000000000001\.jpg name the same"):
        Chair({"1": frozenset({"cat"})}, ("1",)).score({"1": "A cat.", "COCO_val2014_000000000001.jpg": "A dog."})
    with pytest.raises(InvalidInput, match=r"images: a/7\.jpg and 7 name the same"):
        Chair({"7": frozenset()}, ("a/7.jpg", "7"))


def test_file_names_decide_where_ids_are_numbers_of_their_own(write) -> None:
    """A tool that numbers pictures from 1 gives 1.jpg the id 2, and image 1 is another picture."""
    truth = {
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "images": [{"id": 1, "file_name": "0.jpg"}, {"id": 2, "file_name": "train/1.jpg"}, {"id": 3}],
        "annotations": [{"image_id": 1, "category_id": 1}, {"image_id": 2, "category_id": 2}],
    }
    for name in ("1.jpg", "train/1.jpg", "2"):
        assert _scored(write, truth, {name: "A dog."})["chair_s"] == 0
        assert _scored(write, truth, {name: "A cat."})["chair_s"] == 100
    assert _scored(write, truth, {"1": "A cat."})["recall"] == 100


@pytest.mark.parametrize("name", [391895, "391895", "COCO_val2014_000000391895.jpg", "val2014/000000391895.jpg"])
def test_names_of_one_image(name: object) -> None:
    assert image_key(name) == "391895"
    assert image_key("test_0_000012.png") == "test_0_000012.png"


def test_image_lists_are_explicit() -> None:
    for images in chair_image_lists().values():
        assert len(set(images)) == 500
