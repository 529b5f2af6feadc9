"""Published values: equal to the paper's source, and their arithmetic checked cell by cell."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from seewhen.runs.published import cells, document, find

SHARED = Path(os.environ.get("SEEWHEN_SHARED", Path(__file__).parents[3] / "shared"))
PAPER = SHARED / "paper" / "cai.tex.txt"


def value(**facets):
    (cell,) = find(**facets)
    return cell.value


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here (set SEEWHEN_SHARED)")
@pytest.mark.parametrize("table", document()["tables"], ids=lambda t: t["id"])
def test_every_number_is_the_papers(table):
    """All numbers between the rules of the LaTeX table, in order, are ours and nothing else is."""
    tex = PAPER.read_text()
    label = tex.index("\\label{" + table["label"] + "}")
    start, end = tex.rindex("\\begin{table}", 0, label), tex.index("\\end{table}", label)
    body = tex[start:end]
    body = body[body.index("\\midrule") : body.index("\\bottomrule")]
    for markup in (
        r"\\(c?midrule|multirow|multicolumn|rotatebox)(\([a-z]*\))?(\{\d[^}]*\})?",
        r"\\(cell|row)color\{[^}]*\}",
        r"\[HTML\]\{[^}]*\}",
        r"(LLaVA-|Qwen-)[\d.]+",
        r"\\cite\{[^}]*\}",
    ):
        body = re.sub(markup, " ", body)
    printed = [float(x) for x in re.findall(r"[-+]?\d+\.?\d*", body)]
    ours = []
    for row in table["rows"]:
        changes = row.get("printed_change", [None] * len(row["values"]))
        for got, change in zip(row["values"], changes, strict=True):
            ours += [x for x in (got, change) if x is not None]
    assert ours == printed


def test_table_numbers_follow_the_source():
    assert [(t["number"], t["id"]) for t in document()["tables"]] == list(
        enumerate(("chair", "pope", "mme", "efficiency", "baselines", "qwen35"), start=1)
    )


def test_averages_are_means_but_for_the_noted_slips():
    slips = {}
    for cell in find(table="baselines", split="average"):
        method, metric = cell.get("method"), cell.get("metric")
        parts = [
            value(table="baselines", method=method, metric=metric, split=split)
            for split in ("random", "popular", "adversarial")
        ]
        mean = round(sum(parts) / 3 + 1e-9, 2)
        if mean != cell.value:
            slips[method, metric] = (cell.value, mean, [note.recomputed for note in cell.notes])
    assert slips == {
        ("cai", "accuracy"): (86.68, 86.01, [86.01]),
        ("saliency", "f1"): (85.77, 85.78, [85.78]),
    }


def test_mme_totals_are_sums_of_thirds_but_for_the_noted_slips():
    def third(x):  # printed with two decimals; the true value is a multiple of 5/3
        return round(x * 3 / 5) * 5 / 3

    slips = []
    for cell in find(table="mme", metric="score"):
        keys = {"model": cell.get("model"), "method": cell.get("method")}
        total = sum(
            third(value(table="mme", metric=m, **keys)) for m in ("existence", "count", "position", "color")
        )
        if round(total, 2) != cell.value:
            slips.append((keys["method"], cell.value, round(total, 2), cell.notes[0].recomputed))
    assert slips == [("only", 446.66, 446.67, 446.67)]
    scores = (*find(table="qwen35", metric="score"), *find(table="efficiency", metric="mme_score"))
    cut = [c for c in scores if abs(round(third(c.value), 2) - c.value) > 0.004]
    assert [(c.value, c.notes[0].recomputed) for c in cut] == [(691.66, 691.67), (581.66, 581.67)]


def test_efficiency_is_what_the_notes_say():
    for cell in find(table="efficiency", metric="pope_accuracy"):
        splits = find(
            table="pope", dataset="aokvqa", model="LLaVA-1.5", method=cell.get("method"), metric="accuracy"
        )
        if splits:  # the attention-only rows are in no other table
            assert round(sum(c.value for c in splits) / 3, 2) == cell.value
    for cell in find(table="efficiency", metric="chair_s"):
        same = find(
            table="chair", model="LLaVA-1.5", method=cell.get("method"), metric="chair_s", max_new_tokens=128
        )
        assert all(c.value == cell.value for c in same)
    table = next(t for t in document()["tables"] if t["id"] == "efficiency")
    base = table["rows"][0]["values"]
    for row in table["rows"][1:]:
        for k, (got, printed) in enumerate(zip(row["values"], row["printed_change"], strict=True)):
            change = got / base[k] if k < 3 else got - base[k]
            assert change == pytest.approx(printed, abs=0.0051), (row["method"], k)
    slow = value(table="baselines", method="saliency", metric="latency_ms")
    assert round(slow / value(table="baselines", method="cai", metric="latency_ms"), 1) == 32.7


def fits(accuracy, questions):
    near = round(accuracy * questions / 100)
    return any(abs(100 * k / questions - accuracy) < 0.00501 for k in (near - 1, near, near + 1))


def test_coco_random_is_the_old_file_of_2910_questions():
    accuracies = find(table="pope", metric="accuracy")
    old = [c for c in accuracies if c.get("dataset") == "coco" and c.get("split") == "random"]
    assert len(old) == 15
    assert all(fits(c.value, 2910) for c in old)
    assert sum(not fits(c.value, 3000) for c in old) == 10
    assert all(fits(c.value, 3000) for c in accuracies if c not in old)
    assert all(any("2910" in note.text for note in c.notes) for c in old)


def test_cells_know_where_they_stand():
    (cell,) = find(
        table="pope", model="LLaVA-1.5", dataset="coco", split="random", method="cai", metric="accuracy"
    )
    assert cell.value == 89.24
    assert cell.provenance == "CAI paper, Table 2, row 5, column 1 (coco random cai LLaVA-1.5 accuracy)"
    assert len({(c.table, c.row, c.column) for c in cells()}) == len(cells())


def test_every_note_matches_some_cell():
    attached = {note.text for cell in cells() for note in cell.notes}
    assert attached == {note["text"] for note in document()["notes"]}
