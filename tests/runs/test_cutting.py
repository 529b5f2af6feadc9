"""The control that cuts captions off: what is cut, what is kept, and whom it is set beside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.chair.caption_reader import sentences
from seewhen.runs.cutting import control, cut, cut_tallies, read_cuts, write_cuts
from seewhen.runs.scoring import metrics_of, score_records
from seewhen.runs.store import Record

IMAGES = tuple(str(n) for n in range(60))
CHAIR = Chair({image: frozenset({"dog", "car"}) for image in IMAGES}, IMAGES)
METRICS = metrics_of(Chair.summarise)


def records(caption):
    return [Record(image, 0, image, caption(int(image))) for image in IMAGES]


# A true object, then another, then an invention: cutting after two sentences takes away what is invented.
REGULAR = records(lambda n: "A dog is here. A car too." + (" There is a cat." if n % 2 else ""))
BRIEF = records(lambda n: "A dog is here. A car too." if n else "A dog.")
HONEST = records(lambda n: "A dog is here." + (" A car." if n % 3 else ""))


@pytest.mark.parametrize(
    ("caption", "told"),
    [
        ("A dog. A car!  A cat?", ["A dog.", "A car!", "A cat?"]),
        ("On skis.The end", ["On skis.", "The end"]),
        ("It is 3.5 m long. Yes", ["It is 3.5 m long.", "Yes"]),
        ("", [""]),
    ],
)
def test_sentences(caption, told):
    assert sentences(caption) == told


@given(st.text(alphabet="aA .!?\n", max_size=40), st.integers(1, 6))
def test_a_cut_is_a_beginning_and_cutting_twice_is_cutting_once(caption, count):
    assert cut(cut(caption, count), count) == cut(caption, count)
    assert sentences(cut(caption, count)) == sentences(caption)[:count]


def test_cuts_are_scored_as_long_as_they_shorten_a_caption(tmp_path):
    tallies = cut_tallies(CHAIR, REGULAR, [0])
    assert list(tallies) == [1, 2]
    write_cuts(tmp_path, CHAIR, REGULAR, [0])
    back = read_cuts(tmp_path)
    for count, tally in tallies.items():
        assert back[count].images == tally.images
        assert {k: v.tolist() for k, v in back[count].counts.items()} == {
            k: v.tolist() for k, v in tally.counts.items()
        }


def test_a_method_that_is_only_shorter_gains_nothing_beside_the_cut():
    scored = {
        label: score_records(CHAIR, told, [0])
        for label, told in (("regular", REGULAR), ("brief", BRIEF), ("honest", HONEST))
    }
    found = control(scored, cut_tallies(CHAIR, REGULAR, [0]), METRICS)
    assert found.cuts[2]["chair_s"] == 0 and found.cuts[2]["recall"] == 100
    beside = {one.label: one for one in found.methods}
    assert (beside["brief"].sentences, beside["honest"].sentences) == (2, 2)
    assert beside["brief"].differences["chair_s"].value == 0
    assert beside["honest"].differences["recall"].value < 0


def test_without_cuts_or_without_regular_there_is_no_control(tmp_path):
    scored = score_records(CHAIR, BRIEF, [0])
    assert control({"brief": scored}, cut_tallies(CHAIR, REGULAR, [0]), METRICS) is None
    assert read_cuts(tmp_path) == {}
    assert control({"regular": scored}, {}, METRICS) is None
