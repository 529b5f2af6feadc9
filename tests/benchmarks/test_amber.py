"""AMBER: descriptions against annotated objects, questions with "no" as the positive class."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from seewhen.benchmarks import load
from seewhen.benchmarks.amber import Amber
from seewhen.benchmarks.amber.files import load_words
from seewhen.benchmarks.amber.related import Words
from seewhen.benchmarks.amber.vectors import WordVectors
from seewhen.benchmarks.base import Sample
from seewhen.errors import InvalidInput, InvalidMethod

WORDS = Words(
    related={"grass": ("ground",), "ground": ("floor",), "person": ("man", "woman"), "dog": (), "cloud": ("sky",),
             "sky": (), "light": (), "tree": ("forest",)},
    safe=frozenset({"light"}),
)  # fmt: skip


def describe(answer: str, truth: tuple[str, ...], likely: tuple[str, ...] = ("dog", "cloud")) -> dict:
    amber = Amber((Sample("1", "a.jpg", "Describe this image.", truth, "generative"),), {"1": likely}, WORDS)
    return dict(amber.score({"1": answer}).metrics)


def test_description_by_hand() -> None:
    metrics = describe("The man sees a tree, a light and a dog under the sky.", ("person", "grass", "sky"))
    # nouns man, tree, light, dog, sky; tree and dog are not there; light is safe and covers nothing
    assert metrics["chair"] == pytest.approx(40.0)
    assert metrics["cover"] == pytest.approx(100 * 2 / 3)
    assert metrics["hal"] == 100.0
    assert metrics["cog"] == 50.0


def test_related_words_are_booked_before_the_word_itself() -> None:
    # "ground" is related to the first object, so "grass" is covered and "ground" is not: as published.
    assert describe("On the ground.", ("grass", "ground"))["cover"] == 50.0
    assert describe("The floor and the ground.", ("grass", "ground"))["cover"] == 100.0


def test_objects_annotated_twice_are_covered_once() -> None:
    assert describe("A dog and a dog.", ("dog", "dog"), ("cloud",))["cover"] == 50.0


def test_plurals_and_verbs() -> None:
    assert describe("Two dogs. They light it.", ("dog",), ("cloud",))["chair"] == 0.0


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_lists_of_words_from_a_checkout_on_windows(tmp_path: Path, newline: str) -> None:
    (tmp_path / "relation.json").write_text('{"dog": ["puppy"]}')
    (tmp_path / "safe_words.txt").write_bytes(f"image{newline}light{newline}".encode())
    assert load_words(tmp_path).safe == {"image", "light"}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A spaCy model with the vectors of a few words: forest is near tree, floor near sky, dog has none."""
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed (pip install 'seewhen[amber]')")
    nlp = spacy.blank("en")
    for word, angle in {"tree": 0, "light": 10, "person": 30, "sky": 90, "floor": 120, "grass": 300}.items():
        nlp.vocab.set_vector(word, np.array([np.cos(np.radians(angle)), np.sin(np.radians(angle))], dtype="f4"))
    folder = tmp_path_factory.mktemp("vectors")
    nlp.to_disk(folder)
    return f"spacy:{folder}"


def by_vectors(answer: str, truth: tuple[str, ...], likely: tuple[str, ...], similarity: str) -> dict:
    sample = Sample("1", "a.jpg", "Describe this image.", truth, "generative")
    return dict(Amber((sample,), {"1": likely}, WORDS, similarity=similarity).score({"1": answer}).metrics)


def test_words_alike_by_vectors(vectors: str) -> None:
    # 30 degrees apart is a cosine of 0.87, which counts; 60 degrees is 0.5, which does not.
    near = by_vectors("A person.", ("tree",), ("dog",), vectors)
    assert near == {"chair": 0, "cover": 100, "hal": 0, "cog": 0}
    assert describe("A person.", ("tree",), ("dog",)) == {"chair": 100, "cover": 0, "hal": 100, "cog": 0}
    far = by_vectors("A person.", ("sky",), ("dog",), vectors)
    assert far["chair"] == 100 and far["cover"] == 0
    # Through a related word: floor is listed with ground and near the sky.
    assert by_vectors("The sky.", ("ground",), ("dog",), vectors)["cover"] == 100


def test_a_word_may_be_like_what_is_there_and_like_what_is_invented(vectors: str) -> None:
    both = by_vectors("A person.", ("tree",), ("tree", "sky"), vectors)
    assert both["chair"] == 0 and both["cover"] == 100 and both["cog"] == 50
    # The word itself and the first that is like it are both booked.
    assert by_vectors("A person.", ("sky",), ("tree", "person"), vectors)["cog"] == 100


def test_a_word_without_vector_is_like_none_but_itself(vectors: str, recwarn: pytest.WarningsRecorder) -> None:
    assert by_vectors("A dog.", ("tree",), ("cloud",), vectors)["chair"] == 100
    assert by_vectors("A dog.", ("dog",), ("cloud",), vectors)["chair"] == 0
    assert not [w for w in recwarn if "W008" in str(w.message)]


def test_vectors_are_part_of_the_settings(vectors: str) -> None:
    assert Amber((), {}, WORDS).settings["similarity"] == "exact or related"
    assert "> 0.8" in Amber((), {}, WORDS, similarity=vectors).settings["similarity"]


def test_vectors_that_are_not_there(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed (pip install 'seewhen[amber]')")
    with pytest.raises(InvalidMethod, match="no similarity 'wordnet'"):
        WordVectors.load("wordnet")
    with pytest.raises(InvalidInput, match="spacy download en_core_web_lg"):
        WordVectors.load("spacy:no_such_model")
    spacy.blank("en").to_disk(tmp_path)
    with pytest.raises(InvalidInput, match="no word vectors"):
        WordVectors.load(f"spacy:{tmp_path}")


QUESTIONS = tuple(
    Sample(str(n), f"{n % 2}.jpg", "Is it?", truth, kind)
    for n, (truth, kind) in enumerate(
        [("no", "existence"), ("no", "existence"), ("yes", "state"), ("no", "number"), ("yes", "action")]
    )
)


def test_no_is_the_positive_class() -> None:
    amber = Amber(QUESTIONS, {}, WORDS)
    metrics = amber.score({"0": "No", "1": "Yes", "2": "No", "3": "No", "4": "Yes"}).metrics
    assert metrics["accuracy"] == 60.0
    assert metrics["precision"] == pytest.approx(200 / 3) and metrics["recall"] == pytest.approx(200 / 3)
    assert metrics["f1"] == pytest.approx(100 * 2 * (4 / 9) / (4 / 3 + 1e-4))
    assert metrics["existence/f1"] == pytest.approx(100 * 2 * 0.5 / (1.5 + 1e-3))
    assert metrics["attribute/accuracy"] == pytest.approx(200 / 3)


def test_published_reading_is_literal() -> None:
    answers = {"0": "No.", "1": "no", "2": " Yes", "3": "No", "4": "Yes"}
    assert Amber(QUESTIONS, {}, WORDS).score(answers).metrics["accuracy"] == 40.0
    assert Amber(QUESTIONS, {}, WORDS, parser="strict").score(answers).metrics["accuracy"] == 100.0


@pytest.fixture(scope="module")
def published(shared: Path) -> Amber:
    return load("amber", shared)


def test_published_files(published: Amber) -> None:
    kinds = Counter(sample.split for sample in published.samples())
    assert kinds == {
        "generative": 1004,
        "existence": 4924,
        "state": 4764,
        "number": 2072,
        "action": 792,
        "relation": 1664,
    }
    assert len({sample.image for sample in published.samples()}) == 1004


def test_perfect_answers_to_the_published_questions(published: Amber) -> None:
    answers = {}
    for sample in published.samples():
        if sample.split == "generative":
            # Words the offline reader would not take for a noun are left out.
            answers[sample.id] = " ".join(f"The {word} ." for word in sample.truth)
        else:
            answers[sample.id] = str(sample.truth).capitalize()
    score = published.score(answers)
    assert score.missing == 0
    assert score.metrics["accuracy"] == 100.0 and score.metrics["f1"] == pytest.approx(100, abs=0.01)
    assert score.metrics["chair"] == 0.0 and score.metrics["hal"] == 0.0 and score.metrics["cog"] == 0.0
    assert score.metrics["cover"] > 85  # the rest is annotated twice or booked on a related word
    assert score.metrics["amber"] == pytest.approx(100, abs=0.01)


def test_inventing_what_models_tend_to_invent(published: Amber) -> None:
    answers = {s.id: " ".join(f"The {w} ." for w in published.likely[s.id]) for s in published.samples()[:1004]}
    score = published.score(answers)
    assert score.missing == 0  # the discriminative task was not attempted at all
    assert score.metrics["cog"] > 75 and score.metrics["hal"] > 95
    assert "accuracy" not in score.metrics


@pytest.mark.slow
def test_both_noun_readers_mostly_agree(published: Amber, shared: Path, nltk_data: Path) -> None:
    from seewhen.benchmarks.amber.nouns import NounReader
    from seewhen.benchmarks.chair import load_captions

    known = published.words.known
    files = [shared / "chair" / "captions" / f"{model}_greedy.jsonl" for model in ("llava-1.5", "instructblip")]
    captions = [caption for file in files for caption in load_captions(file).values()]
    readers = [NounReader(name, known) for name in ("nltk", "offline")]
    found = [
        [Counter(noun for noun in reader.nouns(caption) if noun in known) for caption in captions]
        for reader in readers
    ]
    nltk_total = sum(counts.total() for counts in found[0])
    more, less = (
        sum((one[k] - one[1 - k]).total() for one in zip(*found, strict=True)) / nltk_total for k in (1, 0)
    )
    assert nltk_total > 400 and more + less < 0.05
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text("utf-8")
    assert f"On {len(captions):,} captions ({nltk_total:,} known nouns by NLTK) it finds {more:.1%} more".replace(
        "%", " %"
    ) in " ".join(page.split())
    assert f"and misses {less:.1%}.".replace("%", " %") in page
