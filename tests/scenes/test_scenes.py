"""Scenes: the same bytes everywhere, disjoint splits, true labels."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seewhen.errors import InvalidInput
from seewhen.scenes import CATEGORIES, HELD_OUT, SPLITS, dataset, render, sample, truth
from seewhen.scenes.rendering import pixels
from seewhen.scenes.scene import _STRAY, MOST_COVERED
from seewhen.scenes.sprites import atlas
from seewhen.scenes.streams import Stream
from seewhen.scenes.world import COLORS, CONTEXTS, SINGLE, SIZE, article, counted, plural

FINGERPRINT = (
    "import hashlib, json, sys\n"
    "from seewhen.scenes import SPLITS, mme, pope, render, sample, truth\n"
    "h = hashlib.sha256()\n"
    "for split in SPLITS:\n"
    "    for index in range(6):\n"
    "        scene = sample(split, index, seed=3)\n"
    "        h.update(render(scene).tobytes())\n"
    "        h.update(json.dumps(truth(scene)).encode())\n"
    "        h.update(json.dumps([pope([scene], 'adversarial'), mme([scene], 'count')]).encode())\n"
    "assert 'torch' not in sys.modules\n"
    "print(h.hexdigest())\n"
)
# Changing this means that every published figure on the scenes is about other pictures.
EXPECTED = "ebff73b1cf66dbd7f67aee6134dada7606f08f7946ecbba716f52684d99ef7bd"


def test_same_bytes_in_other_processes_whatever_the_hash_seed() -> None:
    for hash_seed in ("0", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", FINGERPRINT],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"},
        )
        assert done.stdout.strip() == EXPECTED


def test_order_and_history_do_not_matter() -> None:
    alone = hashlib.sha256(render(sample("test", 7)).tobytes()).hexdigest()
    dataset("test", 3)
    assert hashlib.sha256(render(dataset("test", 8)[7]).tobytes()).hexdigest() == alone
    assert dataset("test", 2, start=5) == dataset("test", 7)[5:]
    assert sample("test", 0, seed=1) != sample("test", 0, seed=2)


def test_no_combination_of_objects_is_in_two_splits() -> None:
    seen = {split: {frozenset(scene.names) for scene in dataset(split, 400)} for split in SPLITS}
    for one, other in combinations(SPLITS, 2):
        assert not seen[one] & seen[other]


def test_objects_co_occur_less_in_the_shifted_part() -> None:
    members = {context.name: set(context.members) for context in CONTEXTS}

    def at_home(split: str) -> float:
        pairs = [(s, name) for s in dataset(split, 300) for name in s.names]  # type: ignore[arg-type]
        return sum(name in members[s.context] for s, name in pairs) / len(pairs)

    assert at_home("test") > 0.85
    assert at_home("shifted") < 0.6


def test_the_page_tells_how_many_kinds_are_drawn_from_all() -> None:
    page = (Path(__file__).parents[2] / "docs" / "scenes.md").read_text(encoding="utf-8")
    assert all(f"| `{split}` | {_STRAY[split]} % |" in page for split in SPLITS)
    assert (
        f"at most {100 * MOST_COVERED:.0f} % of a thing's box" in page and f"in {len(CONTEXTS)}\nkinds of" in page
    )
    sides = [
        max(box[2] - box[0], box[3] - box[1]) for s in dataset("test", 400) for box in (t.box for t in s.things)
    ]
    assert f"{min(sides)} to {max(sides)} pixels on the longer side" in page


@settings(max_examples=60)
@given(st.sampled_from(SPLITS), st.integers(0, 10**6), st.integers(0, 10**6))
def test_truth_holds(split: str, index: int, seed: int) -> None:
    scene = sample(split, index, seed=seed)  # type: ignore[arg-type]
    assert 2 <= len(scene.names) <= 5
    for number, thing in enumerate(scene.things):
        left, top, right, bottom = thing.box
        assert 0 <= left < right <= SIZE and 0 <= top < bottom <= SIZE
        later = np.zeros((SIZE, SIZE), bool)
        for other in scene.things[number + 1 :]:
            later[other.box[1] : other.box[3], other.box[0] : other.box[2]] = True
        covered = later[top:bottom, left:right].mean()
        assert covered <= thing.covered + 1e-9 <= MOST_COVERED + 2e-9
        assert thing.color is None or thing.color in COLORS
    for name in scene.names:
        things = scene.of(name)
        assert 1 <= len(things) <= (1 if name in SINGLE else 3)
        assert len({thing.color for thing in things}) == 1
    record = truth(scene)
    assert record["counts"] == Counter(thing["name"] for thing in record["objects"])


def test_boxes_are_tight_around_what_is_drawn() -> None:
    for scene in dataset("test", 40):
        *others, last = scene.things  # drawn last, so all of it is seen
        without = type(scene)(**{**vars(scene), "things": tuple(others)})
        rows, columns = np.nonzero((pixels(scene) != pixels(without)).any(-1))
        left, top, right, bottom = last.box
        assert left <= columns.min() <= left + 4 and right - 5 <= columns.max() < right
        assert top <= rows.min() <= top + 4 and bottom - 5 <= rows.max() < bottom


def test_pixels_change_only_where_things_are() -> None:
    for scene in dataset("test", 10):
        empty = type(scene)(**{**vars(scene), "things": ()})
        changed = (pixels(scene) != pixels(empty)).any(-1)
        boxes = np.zeros((SIZE, SIZE), bool)
        for thing in scene.things:
            boxes[thing.box[1] : thing.box[3], thing.box[0] : thing.box[2]] = True
        assert not (changed & ~boxes).any()
        assert changed.any()


def test_held_out_artwork_never_appears_by_itself() -> None:
    assert HELD_OUT in atlas().artworks
    assert {scene.artwork for split in SPLITS for scene in dataset(split, 60)} == {"noto", "fluent"}
    held_out = dataset("test", 20, artwork=HELD_OUT)
    assert {scene.artwork for scene in held_out} == {HELD_OUT}
    for scene in held_out:
        redrawn = type(scene)(**{**vars(scene), "artwork": "noto"})
        assert (pixels(scene) != pixels(redrawn)).any()


def test_every_category_has_a_sprite_and_a_place() -> None:
    assert set(CATEGORIES) == set(atlas().variants)
    assert len(CATEGORIES) == 64


def test_names_in_english() -> None:
    assert [counted("dog", 1), counted("apple", 1), counted("knife", 3)] == ["a dog", "an apple", "three knives"]
    assert counted("scissors", 1, "red") == "a pair of red scissors"
    assert counted("orange", 1, "blue") == "a blue orange"
    assert article("elephant") == "an elephant" and plural("mouse") == "mice"


def test_unknown_names_are_errors_that_list_the_choices() -> None:
    with pytest.raises(InvalidInput, match="shifted"):
        sample("nowhere", 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="twemoji"):
        sample("test", 0, artwork="crayon")


def test_streams_choose_as_they_should() -> None:
    stream = Stream(0, "test")
    drawn = Counter(stream.weighted("abc", (1, 2, 7)) for _ in range(5000))
    assert [round(drawn[letter] / 5000, 1) for letter in "abc"] == [0.1, 0.2, 0.7]
    assert sorted(stream.shuffled(range(20))) == list(range(20))
    assert {stream.between(3, 5) for _ in range(100)} == {3, 4, 5}
    first = [Stream(1, "a", i).below(10**9) for i in range(50)]
    assert all(a != b for a, b in pairwise(first))
