"""The committed study: what the page says is what the report says, and the report is what the answers give."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from photographs import evidence, holdout
from seewhen.cli import app
from seewhen.runs.store import read_run

REPORT = json.loads((evidence.RESULTS / "report" / "report.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    with tarfile.open(evidence.RESULTS / "runs.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "runs"


def test_the_page_shows_the_reports_table() -> None:
    page = (evidence.DOCS / "evidence.md").read_text("utf-8")
    assert evidence.with_table(page, evidence.table(REPORT)) == page
    assert page.count(evidence.START) == page.count(evidence.END) == 1


def test_the_report_is_made_from_the_committed_answers(runs: Path, tmp_path: Path) -> None:
    """A group of it: all greedy captions of 64 tokens, with intervals and corrected tests."""
    wanted = evidence.groups(REPORT)["chair", "greedy", 64]
    folders = [str(runs / method["run"]) for method in wanted["methods"]]
    done = CliRunner().invoke(app, ["report", *folders, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    made = json.loads((tmp_path / "report.json").read_text("utf-8"))["groups"]
    assert len(made) == 1 and made[0]["facts"] == wanted["facts"]
    assert made[0]["methods"] == wanted["methods"]


def test_every_run_of_the_report_is_there_complete_and_about_held_out_photographs(runs: Path) -> None:
    named = {method["run"] for group in REPORT["groups"] for method in group["methods"]}
    assert named == {path.name for path in runs.iterdir()}
    lists = holdout.read()
    tested = {"pope": lists["pope"], "chair": lists["chair"]}
    for folder in sorted(runs.iterdir()):
        run = read_run(folder)
        assert not [record for record in run.records if record.error]
        benchmark = run.config["benchmark"]["name"]
        numbers = {int(Path(record.image).stem.rpartition("_")[2]) for record in run.records}
        assert numbers <= tested[benchmark] and not numbers & lists["validation"]
        assert (
            len(numbers)
            == {"chair": 445, "pope": 431 if run.config["decoding"]["mode"] == "greedy" else 100}[benchmark]
        )
        assert '"/' not in (folder / "manifest.json").read_text("utf-8")  # no folder of any machine


def score(*arguments: Any) -> dict[str, float]:
    done = CliRunner().invoke(app, ["score", *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["metrics"]


@pytest.mark.parametrize("place", [0, 3, 6])
def test_score_gives_the_reports_numbers_from_the_published_files(runs: Path, shared: Path, place: int) -> None:
    asked = evidence.groups(REPORT)["pope", "greedy", 8]["methods"][place]
    files = [x for kind in ("random", "popular", "adversarial") for x in ("--questions", f"coco_pope_{kind}.json")]
    questions = [str(shared / "pope" / x) if x.endswith(".json") else x for x in files]
    found = score("pope", "--answers", runs / asked["run"] / "samples.jsonl", *questions)
    for name in ("accuracy", "f1", "coco-adversarial/accuracy"):
        assert found[name] == pytest.approx(asked["metrics"][name]["value"], abs=1e-4)
    told = evidence.groups(REPORT)["chair", "greedy", 64]["methods"][place]
    found = score(
        "chair", "--answers", runs / told["run"] / "samples.jsonl", "--objects", shared / "coco_objects.json.gz"
    )
    for name in ("chair_s", "chair_i", "recall"):
        assert found[name] == pytest.approx(told["metrics"][name]["value"], abs=1e-4)


def test_the_model_is_worth_measuring() -> None:
    """The marks that were set for it before it was trained."""
    found = evidence.groups(REPORT)
    regular = {key: group["methods"][0]["metrics"] for key, group in found.items()}
    for kind, least in (("random", 80), ("popular", 76), ("adversarial", 72)):
        assert regular["pope", "greedy", 8][f"coco-{kind}/accuracy"]["value"] >= least
    for tokens in (64, 128):
        assert regular["chair", "greedy", tokens]["chair_i"]["value"] < 35
        assert regular["chair", "greedy", tokens]["recall"]["value"] > 40
