"""3,000 published captions, scored by the usual NLTK scorer beforehand: ours must agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chair_differences import report
from seewhen.benchmarks.base import add_up
from seewhen.benchmarks.chair import Chair, load_captions
from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.chair.coco import Objects, load_objects
from seewhen.benchmarks.lemmatise import nltk_reader
from seewhen.errors import InvalidInput

FILES = [f"{model}_{how}" for model in ("instructblip", "llava-1.5") for how in ("beam5", "greedy", "ours")]


@pytest.fixture(scope="module")
def expected(shared: Path) -> dict:
    return json.loads((shared / "chair" / "expected.json").read_text())


@pytest.fixture(scope="module")
def truth(shared: Path) -> Objects:
    reader = CaptionReader()
    return load_objects([shared / "coco_objects.json.gz"], reader.lexicon, reader.objects)


@pytest.fixture(scope="module")
def captions(shared: Path) -> dict[str, dict[str, str]]:
    return {name: load_captions(shared / "chair" / "captions" / f"{name}.jsonl") for name in FILES}


@pytest.mark.parametrize("name", [FILES[-1], *(pytest.param(name, marks=pytest.mark.slow) for name in FILES[:-1])])
def test_nltk_variant_is_exact(name: str, expected: dict, truth: Objects, captions: dict, nltk_data: Path) -> None:
    score = Chair(truth, tuple(captions[name]), CaptionReader("nltk")).score(captions[name])
    want = expected[f"{name}.jsonl"]
    got = [
        {"image_id": int(row.id), "mentioned": row.detail["mentioned"], "hallucinated": row.detail["hallucinated"]}
        for row in score.rows
    ]
    assert got == want["captions"]
    totals = want["totals"]
    counts = add_up(score.rows)["captions"]
    assert len(counts) == 9 and counts.pop("words") < counts["tokens"]  # not in the published scorer
    assert counts == {count: totals[count] for count in counts}
    for metric in ("chair_s", "chair_i", "recall"):
        assert score.metrics[metric] == pytest.approx(totals[metric], abs=1e-12)


@pytest.mark.parametrize("name", FILES)
def test_offline_default_stays_within_three_tenths(
    name: str, expected: dict, truth: Objects, captions: dict
) -> None:
    metrics = Chair(truth, tuple(captions[name])).score(captions[name]).metrics
    totals = expected[f"{name}.jsonl"]["totals"]
    for metric in ("chair_s", "chair_i", "recall"):
        assert metrics[metric] == pytest.approx(totals[metric], abs=0.3), metric
    assert metrics["precision"] == pytest.approx(100 * totals["recalled"] / totals["distinct_mentioned"], abs=0.3)
    assert metrics["length"] == pytest.approx(totals["tokens"] / totals["captions"], abs=0.3)


@pytest.mark.slow
def test_the_documented_differences_are_the_measured_ones(truth: Objects, captions: dict, nltk_data: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert report(captions, truth) in page


def test_without_its_data_the_nltk_variant_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nltk = pytest.importorskip("nltk", reason="the NLTK variant needs the package nltk")
    monkeypatch.delenv("NLTK_DATA", raising=False)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    with pytest.raises(InvalidInput, match=r"wordnet.*nltk\.downloader.*NLTK_DATA.*offline"):
        nltk_reader.__wrapped__()
