"""Finding, checking and naming the benchmarks' files; benchmarks by name; scenes through the same scorers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from seewhen.benchmarks import benchmark_class, benchmark_names, load
from seewhen.benchmarks.base import add_up
from seewhen.benchmarks.chair.prompts import STYLES as CHAIR_STYLES
from seewhen.benchmarks.checking import check
from seewhen.benchmarks.files import find_image, picture_names, read_image_list
from seewhen.benchmarks.pope.files import FILES as POPE_FILES
from seewhen.benchmarks.pope.prompts import STYLES as POPE_STYLES
from seewhen.errors import InvalidInput, InvalidMethod

QUESTION = {"question_id": 1, "image": "a.jpg", "text": "Is there an owl in the imange?", "label": "yes"}


def test_published_files_are_recognised(shared: Path) -> None:
    states = {finding.key: finding.state for finding in check(shared, ("pope", "amber", "chair"))}
    assert states.pop("chair/objects") == "present"
    assert len(states) == 16 and set(states.values()) == {"ok"}


def test_what_differs_is_described(write, tmp_path: Path) -> None:
    write("coco_pope_random.json", [QUESTION])
    write("coco_pope_popular.json", "{")
    findings = {finding.key: finding for finding in check(tmp_path, ("pope",))}
    assert findings["pope/coco-random"].state == "differs" and "imange" in findings["pope/coco-random"].note
    assert findings["pope/coco-popular"].state == "broken" and "line 1" in findings["pope/coco-popular"].note
    assert findings["pope/gqa-random"].state == "missing" and "RUCAIBox" in findings["pope/gqa-random"].source


@pytest.mark.parametrize("layout", ["output/coco/", "POPE/coco/", "pope/", ""])
def test_files_are_found_where_repositories_keep_them(write, tmp_path: Path, layout: str) -> None:
    path = write(f"{layout}coco_pope_random.json", [QUESTION])
    assert POPE_FILES["coco-random"].locate(tmp_path) == path


def test_a_missing_file_says_what_and_where(tmp_path: Path) -> None:
    for expected in (file for name in benchmark_names() for file in benchmark_class(name).files):
        with pytest.raises(InvalidInput) as error:
            expected.locate(tmp_path)
        assert expected.names[0] in str(error.value) and expected.source in str(error.value)


def test_chair_needs_the_table_or_the_four_files(write, tmp_path: Path) -> None:
    assert len(check(tmp_path, ("chair",))) == 5
    write("coco_objects.json", "{}")
    assert [finding.key for finding in check(tmp_path, ("chair",))] == ["chair/objects"]


def test_splits_and_names(write, tmp_path: Path) -> None:
    write("coco_pope_random.json", [QUESTION])
    assert [s.split for s in load("pope", tmp_path).samples()] == ["coco-random"]
    with pytest.raises(InvalidInput, match="coco-popular is not in"):
        load("pope", tmp_path, split="coco")
    with pytest.raises(InvalidInput, match="no split 'coco_random'"):
        load("pope", tmp_path, split="coco_random")
    with pytest.raises(InvalidMethod, match="pope, chair, mme, amber"):
        load("vqa", tmp_path)
    with pytest.raises(InvalidInput, match="no folder"):
        load("pope", tmp_path / "nowhere")


def test_images_are_found_by_name_or_number(write, tmp_path: Path) -> None:
    path = write("val2014/COCO_val2014_000000000042.jpg", "")
    assert find_image(tmp_path, "42") == find_image(tmp_path, "COCO_val2014_000000000042.jpg") == path
    with pytest.raises(InvalidInput, match="picture 43"):
        find_image(tmp_path, "43")
    assert picture_names("43")[0] == "COCO_val2014_000000000043.jpg", "what a run says is missing"
    assert picture_names("a b.jpg") == ["a b.jpg"]


def test_image_lists(write) -> None:
    assert read_image_list(write("ids.txt", "9\n\n7\n")) == ("9", "7")
    assert read_image_list(write("ids.jsonl", [{"image_id": 9}, {"image_id": 7}])) == ("9", "7")


def test_chair_by_name_uses_an_explicit_list(shared: Path) -> None:
    benchmark = load("chair", shared)
    samples = benchmark.samples()
    assert len(samples) == 500 and samples == load("chair", shared, image_list="opera-llava-1.5").samples()
    captions = {s.id: " ".join(s.truth) for s in samples}
    score = benchmark.score(captions)
    assert score.metrics["chair_s"] == 0 and score.missing == 0


@pytest.mark.parametrize(
    ("name", "split"), [("pope", "shifted"), ("pope", "test-popular"), ("chair", "test"), ("mme", "test")]
)
def test_scenes_go_through_the_same_scorers(name: str, split: str) -> None:
    benchmark = load(name, "scenes", split=split, scenes=12)
    samples = benchmark.samples()
    assert len({s.id for s in samples}) == len(samples) > 0
    perfect = {s.id: s.truth if isinstance(s.truth, str) else "a " + " and a ".join(s.truth) for s in samples}
    score = benchmark.score(perfect)
    best = {"pope": ("accuracy", 100), "chair": ("recall", 100), "mme": ("hallucination", 800)}[name]
    assert score.metrics[best[0]] == best[1] and score.missing == 0
    assert all(row.right for row in score.rows)
    assert benchmark.prompt(samples[0], benchmark.default_style)


def test_amber_has_no_scenes() -> None:
    with pytest.raises(InvalidInput, match="amber is not made from scenes"):
        load("amber", "scenes")


@pytest.mark.parametrize(
    ("name", "answer"), [("pope", "Yes, no"), ("chair", "A dog and a cup near a car."), ("mme", "yes")]
)
def test_scores_survive_json_and_resample_as_arrays(name: str, answer: str) -> None:
    benchmark = load(name, "scenes", split="test", scenes=8)
    score = benchmark.score({s.id: answer for s in benchmark.samples()})
    assert json.loads(json.dumps(score.to_json()))["metrics"] == dict(score.metrics)
    totals = add_up(score.rows)
    doubled = {g: {k: np.array([v, 2 * v, 0.0]) for k, v in sums.items()} for g, sums in totals.items()}
    for metric, values in benchmark.summarise(doubled).items():
        # Every image drawn twice changes no metric; none drawn gives 0 and not an error.
        np.testing.assert_allclose(values, [score.metrics[metric]] * 2 + [0.0], err_msg=metric)


def test_prompts_by_name() -> None:
    question = "Is there a dog in the image?"
    assert POPE_STYLES["plain"].text(question) == question
    assert (
        POPE_STYLES["cai-llava"].text(question).endswith("USER: <image>\nIs there a dog in the image? ASSISTANT:")
    )
    assert "curious human" in POPE_STYLES["only-llava"].text(question)
    assert (
        POPE_STYLES["pai"]
        .text(question)
        .endswith("questions.USER: <image> Is there a dog in the image? ASSISTANT:")
    )
    assert POPE_STYLES["ict"].text(question).endswith("image?Please answer this question in one word.")
    assert POPE_STYLES["lmms-eval"].text(question).endswith("\nAnswer the question using a single word or phrase.")
    assert {style.max_new_tokens for name, style in CHAIR_STYLES.items() if name.startswith("plain")} == {
        64,
        128,
        512,
    }
    benchmark = load("pope", "scenes", split="test-random", scenes=3)
    with pytest.raises(InvalidMethod, match="cai-llava"):
        benchmark.prompt(benchmark.samples()[0], "nobody")


def test_importing_the_benchmarks_needs_no_torch() -> None:
    code = "import sys, seewhen.benchmarks; print('torch' in sys.modules, 'nltk' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["False", "False"]
    assert benchmark_names() == ("pope", "chair", "mme", "amber")
