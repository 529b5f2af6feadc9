"""Nothing that is tested is trained on."""

import json
from itertools import combinations
from pathlib import Path

from photographs import evidence, holdout


def test_no_tested_photograph_was_trained_on() -> None:
    """The real list of the packaged model: as many as its training log says, none of them held out."""
    trained = holdout.trained()
    log = [json.loads(line) for line in (evidence.RESULTS / "training.jsonl").read_text("utf-8").splitlines()]
    assert len(set(trained)) == len(trained) == max(line.get("photographs", 0) for line in log) == 66_656
    assert trained == sorted(trained)
    for name, numbers in holdout.read().items():
        assert numbers.isdisjoint(trained), name


def test_all_that_was_trained_on_is_a_labelled_photograph(shared: Path) -> None:
    _, objects = holdout.load_table(shared / "coco_objects.json.gz")
    trained = set(holdout.trained())
    assert trained <= objects.keys() and all(objects[n] for n in trained)


def test_the_list_of_what_was_trained_on_survives_writing(tmp_path: Path) -> None:
    holdout.write_trained([9, 3, 200_000], tmp_path / "x.xz")
    assert holdout.trained(tmp_path / "x.xz") == [3, 9, 200_000]


def test_no_tested_photograph_is_taken_for_training() -> None:
    lists = holdout.read()
    held_out = frozenset().union(*lists.values())
    every = {*held_out, *range(1, 600_000, 40)}
    objects = {n: (n % 80,) for n in every}
    order = holdout.training_order(objects, every, held_out)
    assert len(order) + len(held_out) == len(every)
    assert held_out.isdisjoint(order)


def test_the_tuning_set_is_apart_from_what_is_reported() -> None:
    lists = holdout.read()
    assert len(lists["validation"]) == holdout.VALIDATION
    for name in ("pope", "chair", "annotated"):
        assert lists["validation"].isdisjoint(lists[name])
    assert all(lists[a] != lists[b] for a, b in combinations(lists, 2))


def test_all_published_images_are_held_out(shared: Path) -> None:
    lists = holdout.read()
    for file in sorted((shared / "pope").glob("coco_pope_*.json")):
        images = {int(json.loads(line)["image"][-16:-4]) for line in file.read_text().splitlines()}
        assert len(images) == 500 and images <= lists["pope"]
    for file in sorted((shared / "chair" / "captions").glob("*.jsonl")):
        images = {int(json.loads(line)["image_id"]) for line in file.read_text().splitlines()}
        assert len(images) == 500 and images <= lists["chair"]


def test_rare_objects_come_first_and_empty_photographs_last() -> None:
    objects = {n: (0,) for n in range(5000)} | {7000: (1,), 7001: (0, 1), 7002: ()}
    order = holdout.training_order(objects, objects, ())
    assert set(order[:2]) == {7000, 7001}
    assert order[-1] == 7002
    assert order != sorted(order)


def test_lists_survive_writing(tmp_path: Path) -> None:
    holdout.write({"pope": [3, 5], "chair": []}, tmp_path / "lists.json")
    assert holdout.read(tmp_path / "lists.json") == {"pope": {3, 5}, "chair": frozenset()}
