"""Questions: balanced, true, and by each benchmark's rule."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.errors import InvalidInput
from seewhen.scenes import CATEGORIES, Scene, chair, dataset, mme, pope
from seewhen.scenes.captions import caption, expected
from seewhen.scenes.questions import KINDS, SUBTASKS, Kind, Subtask, statistics
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import NUMBERS, article, counted, plural

SCENES = dataset("shifted", 150)
BY_IMAGE = {scene.image: scene for scene in SCENES}
SINGULAR = {article(name): name for name in CATEGORIES}
PLURAL = {plural(name): name for name in CATEGORIES}


def asked(text: str) -> str:
    match = re.fullmatch(r"Is there (an? [a-z ]+) in (?:the|this) image\?(?: Please answer yes or no\.)?", text)
    assert match, text
    return SINGULAR[match[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_pope_is_balanced_true_and_never_repeats(kind: Kind) -> None:
    records = pope(SCENES, kind)
    assert [record["question_id"] for record in records] == list(range(1, len(records) + 1))
    assert [record["label"] for record in records] == ["yes", "no"] * (len(records) // 2)
    names: dict[str, list[str]] = {}
    for record in records:
        name = asked(record["text"])
        assert (name in BY_IMAGE[record["image"]].names) == (record["label"] == "yes")
        names.setdefault(record["image"], []).append(name)
    assert set(names) == {scene.image for scene in SCENES if len(scene.names) >= 3}
    assert all(len(set(group)) == 6 for group in names.values())
    assert pope(SCENES, kind) == records
    assert pope(SCENES, kind, seed=1) != records


def test_popular_and_adversarial_negatives_follow_their_rule() -> None:
    stats = statistics()
    assert stats.popular[0] == "person"
    for record_yes, record_no in zip(
        pope(SCENES, "adversarial")[::6], pope(SCENES, "adversarial")[1::6], strict=True
    ):
        present = BY_IMAGE[record_yes["image"]].names
        order = stats.companions[asked(record_yes["text"])]
        assert asked(record_no["text"]) == next(name for name in order if name not in present)
    popular = Counter(asked(r["text"]) for r in pope(SCENES, "popular") if r["label"] == "no")
    random = Counter(asked(r["text"]) for r in pope(SCENES, "random") if r["label"] == "no")
    assert len(popular) < 15 < len(random)


def holds(scene: Scene, question: str) -> bool:
    """Whether it is true, read from the words of the question alone."""
    body = question.removesuffix(" Please answer yes or no.")
    if match := re.fullmatch(r"Is there only one ([a-z ]+) in this image\?", body):
        return len(scene.of(match[1])) == 1
    if match := re.fullmatch(rf"Are there ({'|'.join(NUMBERS)}) ([a-z ]+) in this image\?", body):
        return len(scene.of(PLURAL[match[2]])) == NUMBERS.index(match[1])
    if match := re.fullmatch(r"Is the ([a-z ]+) on the (left|right) side of the ([a-z ]+)\?", body):
        one, other = scene.of(match[1])[0].center[0], scene.of(match[3])[0].center[0]
        return one < other if match[2] == "left" else one > other
    if match := re.fullmatch(r"(?:Is|Are) the ([a-z ]+) (red|yellow|green|blue|purple)\?", body):
        name = match[1] if match[1] in CATEGORIES else PLURAL[match[1]]
        return scene.of(name)[0].color == match[2]
    return asked(question) in scene.names


@pytest.mark.parametrize("subtask", SUBTASKS)
def test_mme_asks_a_true_and_a_false_question_per_picture(subtask: Subtask) -> None:
    records = mme(SCENES, subtask)
    assert len(records) >= 100
    assert set(Counter(record["image"] for record in records).values()) == {2}
    assert [record["answer"] for record in records] == ["Yes", "No"] * (len(records) // 2)
    for record in records:
        assert record["question"].endswith(" Please answer yes or no.")
        assert holds(BY_IMAGE[record["image"]], record["question"]) == (record["answer"] == "Yes")


def test_chair_truth_is_what_is_drawn() -> None:
    truth = chair(SCENES)
    assert all(set(truth[s.image]) == {thing.name for thing in s.things} for s in SCENES)


def test_unknown_settings_are_errors() -> None:
    with pytest.raises(InvalidInput, match="adversarial"):
        pope(SCENES, "easy")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="position"):
        mme(SCENES, "smell")  # type: ignore[arg-type]


def test_captions_name_what_is_there_and_what_they_are_told_to_invent() -> None:
    for scene in SCENES[:60]:
        invented = expected(scene, 2, Stream(0, "expected", scene.index))
        assert not set(invented) & set(scene.names)
        text = caption(scene, Stream(0, "caption", scene.index), invented)
        rest = text
        for name in sorted([*scene.names, *invented], key=len, reverse=True):
            count = max(1, len(scene.of(name)))
            form = counted(name, count).split(" ")[-1]
            assert form in rest, (name, text)
        assert text[0].isupper() and text.endswith(".") and 10 <= len(text.split()) <= 80


def test_chair_reads_nothing_into_a_caption_that_is_not_there() -> None:
    """Places, moods and connecting words must not be in CHAIR's vocabulary."""
    reader = CaptionReader()
    for scene in dataset("test", 200):
        text = caption(scene, Stream(0, "caption", scene.index))
        assert set(reader.objects(text)) <= set(scene.names), text
