"""Six ways to read an answer, against the table in docs/benchmarks.md."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seewhen.benchmarks.yesno import PARSERS, count_answer, parser_named, yes_no_metrics
from seewhen.errors import InvalidMethod

# output, A, B, C, (D if the label is yes, D if it is no), E ("" = wrong for both labels)
TABLE = [
    ("Yes", "yes", "yes", "yes", (True, False), "yes"),
    ("No.", "no", "no", "no", (False, True), "other"),
    ("There isn't a dog.", "yes", "no", "no", (False, False), "other"),
    ("Yes, there is no doubt.", "no", "no", "no", (True, True), "other"),
    ("no\nbecause", "yes", "yes", "no", (False, True), "other"),
    ("Snow everywhere", "yes", "yes", "yes", (False, True), "other"),
    ("", "yes", "yes", "yes", (False, False), "other"),
]


@pytest.mark.parametrize(("output", "a", "b", "c", "d", "e"), TABLE)
def test_truth_table(output: str, a: str, b: str, c: str, d: tuple[bool, bool], e: str) -> None:
    for name, expected in (("A", a), ("B", b), ("C", c), ("E", e)):
        for label in ("yes", "no"):
            assert PARSERS[name](output, label) == expected, name
    assert tuple(PARSERS["D"](output, label) == label for label in ("yes", "no")) == d


@pytest.mark.parametrize(
    ("output", "verdict"),
    [
        ("Yes, it is", "yes"),
        (" no.", "no"),
        ("**No**", "no"),
        ("Not sure", "other"),
        ("7", "other"),
        ("", "other"),
    ],
)
def test_strict_reads_the_first_word_only(output: str, verdict: str) -> None:
    assert PARSERS["strict"](output, "yes") == verdict


@given(st.text(), st.sampled_from(["yes", "no"]), st.sampled_from(sorted(PARSERS)))
def test_every_parser_reads_any_text(text: str, label: str, name: str) -> None:
    verdict = PARSERS[name](text, label)
    assert verdict in ("yes", "no", "other")
    if name in "ABCD":
        assert verdict != "other"


@given(st.text())
def test_b_and_c_agree_on_one_line_and_c_ignores_the_rest(text: str) -> None:
    first = text.split("\n")[0]
    assert PARSERS["C"](text, "yes") == PARSERS["B"](first, "yes")


@given(st.lists(st.tuples(st.sampled_from(["yes", "no", "other"]), st.sampled_from(["yes", "no"])), min_size=1))
def test_metrics_agree_with_their_definitions(pairs: list) -> None:
    sums: dict[str, float] = {}
    for verdict, label in pairs:
        for name, count in count_answer(verdict, label, "yes", verdict).items():
            sums[name] = sums.get(name, 0) + count
    metrics = yes_no_metrics(sums)
    hits = sum(v == t == "yes" for v, t in pairs)
    said, there = sum(v == "yes" for v, _ in pairs), sum(t == "yes" for _, t in pairs)
    assert metrics["accuracy"] == pytest.approx(100 * sum(v == t for v, t in pairs) / len(pairs))
    assert metrics["precision"] == pytest.approx(100 * hits / said if said else 0)
    assert metrics["recall"] == pytest.approx(100 * hits / there if there else 0)
    assert metrics["f1"] == pytest.approx(200 * hits / (said + there) if said + there else 0)


def test_unknown_parser_lists_the_names() -> None:
    with pytest.raises(InvalidMethod, match="A, B, C, D, E, strict"):
        parser_named("F")
