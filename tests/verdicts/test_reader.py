"""From text to mentions, sentences and tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seewhen.benchmarks.chair import CaptionReader
from seewhen.verdicts.lexicon import chair_lexicon
from seewhen.verdicts.reader import TokenSpans, read_mentions
from seewhen.verdicts.sentences import sentence_ends

COCO = chair_lexicon()
SCRAPS = [
    "a dog",
    "A cat.",
    " ",
    ".",
    "...",
    "Dr.",
    "3",
    "3.5",
    "\n",
    "\n\n",
    "1. ",
    "e.g.",
    "İ",
    '"',
    "!",
    "x",
    "- ",
]


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each sentence, the unfinished last one included; between two there is only space."""
    start = 0
    for end in (*sentence_ends(text), len(text)):
        start += len(text[start:end]) - len(text[start:end].lstrip())
        if start < end:
            yield start, end
        start = end


def sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentence_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A dog. A cat", ["A dog.", "A cat"]),
        ("Dr. Smith sits 3.5 m from a dog. He waits.", ["Dr. Smith sits 3.5 m from a dog.", "He waits."]),
        ("1. A dog\n2. A cat\n3. A cow", ["1. A dog", "2. A cat", "3. A cow"]),
        ("- a dog\n- a cat", ["- a dog", "- a cat"]),
        ("A dog... Then a cat!? Yes", ["A dog...", "Then a cat!?", "Yes"]),
        ('He says "Stop." The dog sits.', ['He says "Stop."', "The dog sits."]),
        ("Taken in 2019. A dog", ["Taken in 2019.", "A dog"]),
        ("Cups, plates, etc. are here. Yes", ["Cups, plates, etc. are here.", "Yes"]),
        ("Cups, plates, etc. A dog", ["Cups, plates, etc.", "A dog"]),
        ("A U.S. flag. A dog", ["A U.S. flag.", "A dog"]),
        ("two skis.The man", ["two skis.", "The man"]),
        ("a hard\nline break", ["a hard\nline break"]),
        ("A dog\n\na cat", ["A dog", "a cat"]),
        ("狗在这里。猫也在。", ["狗在这里。", "猫也在。"]),
        ("no end at all", ["no end at all"]),
        ("...", ["..."]),
        ("", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


@given(st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join))
def test_a_growing_text_never_loses_a_sentence(text: str) -> None:
    counts = [len(sentence_ends(text[:length])) for length in range(len(text) + 1)]
    assert counts == sorted(counts)


@given(st.text(max_size=60) | st.lists(st.sampled_from(SCRAPS), max_size=12).map("".join))
def test_sentences_cover_the_text(text: str) -> None:
    parts = sentences(text)
    assert "".join("".join(parts).split()) == "".join(text.split())


def test_mentions_say_what_where_and_in_which_sentence() -> None:
    text = "Two Hot Dogs lie on plates. A couch, a sofa.The cat sleeps"
    found = read_mentions(text, COCO)
    assert [(each.object, each.text, each.sentence) for each in found] == [
        ("hot dog", "Hot Dogs", 0),
        ("couch", "couch", 1),
        ("couch", "sofa", 1),
        ("cat", "cat", 2),
    ]
    assert all(text[each.start : each.end] == each.text for each in found)


@given(
    st.lists(st.sampled_from([*SCRAPS, "hot ", "dogs ", "The toilet seat. ", "TV, "]), max_size=12).map("".join)
)
def test_spans_are_places_in_the_text(text: str) -> None:
    spans = list(sentence_spans(text))
    for mention in read_mentions(text, COCO):
        assert text[mention.start : mention.end] == mention.text
        start, end = spans[mention.sentence]
        assert start <= mention.start and mention.end <= end


def test_coco_reads_as_chair_does(shared: Path) -> None:
    folder = shared / "chair" / "captions"
    reader = CaptionReader()
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines()[:150]:
            caption = json.loads(line)["caption"]
            assert tuple(each.object for each in read_mentions(caption, COCO)) == reader.objects(caption), caption


def test_tokens_of_a_span() -> None:
    tokens = TokenSpans.of(["A", " hot", " do", "gs", ".", " The", "", " end"])
    assert tokens.covering(2, 10) == range(1, 4)  # "hot dogs" begins within " hot"
    assert tokens.covering(0, 1) == range(0, 1)


@given(st.lists(st.text("ab ", max_size=3), min_size=1), st.data())
def test_covering_tokens_hold_the_characters(texts: list[str], data: st.DataObject) -> None:
    text = "".join(texts)
    if not text:
        return
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    tokens = TokenSpans.of(texts).covering(start, end)
    before = sum(map(len, texts[: tokens.start]))
    joined = "".join(texts[tokens.start : tokens.stop])
    assert before <= start and joined[start - before : end - before] == text[start:end]
    assert texts[tokens.start] and texts[tokens.stop - 1]
