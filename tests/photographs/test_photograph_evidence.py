"""The committed study: what the page says is what the report says, and the report is what the answers give."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from photographs import evidence, holdout, tables, wanted
from seewhen.benchmarks.pope.repope import labels_in
from seewhen.cli import app
from seewhen.decoding.method import Method
from seewhen.methods import method_class, method_names
from seewhen.runs.store import read_run

pytestmark = pytest.mark.slow

REPORT = evidence.read("report/report.json")


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(evidence.RESULTS / f"{name}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("runs", tmp_path_factory.mktemp("study"))


def test_the_page_shows_the_reports_tables() -> None:
    page = (evidence.DOCS / "evidence.md").read_text("utf-8")
    made = evidence.all_tables()
    for name, table in made.items():
        assert page.count(evidence.start(name)) == 1
        assert evidence.with_table(page, name, table) == page
        assert table.count("\n") > 15
    assert page.count(evidence.END) == len(made)


@pytest.mark.parametrize(
    ("method", "metric", "told", "real"),
    [
        ("CAI:contrast=3:contrast", "accuracy", "−0.9", False),
        ("CAI:contrast=3:contrast", "repope_accuracy", "−2.6 (−3.6 to −1.7)", True),
        ("CAI:contrast=3", "repope_accuracy", "−2.7", True),
        ("CAI:contrast=3", "repope_mcc", "−3.2", True),
        ("CAI:contrast=3:contrast", "repope_mcc", "−3.2", True),
        ("CAI:paper", "repope_accuracy", "−1.8", True),
        ("ONLY", "repope_accuracy", "−2.3", True),
        ("CAI:contrast=3:attention", "coco-popular/repope_accuracy", "−0.3 (−0.9 to +0.2)", False),
        ("CAI:contrast=3:attention", "coco-popular/accuracy", "−1.0", True),
        ("VCD", "coco-popular/repope_accuracy", "−1.3", False),
        ("VCD", "repope_accuracy", "−1.5", True),
        ("DoLa", "repope_accuracy", "−2.4", True),
        ("DoLa", "accuracy", "−5.8", True),
    ],
)
def test_the_words_about_corrected_labels_say_what_the_report_says(
    method: str, metric: str, told: str, real: bool
) -> None:
    page = (evidence.DOCS / "evidence.md").read_text("utf-8")
    paragraph = page.partition("**What changes.**")[2].partition("\n## ")[0]
    assert told.lstrip("−") in paragraph
    row = tables.by_label(REPORT, [tables.ASKED])[method][tables.ASKED]
    found = next(c for c in row["comparisons"] if (c["against"], c["metric"]) == ("regular", metric))
    said = f"{found['value']:+.1f} ({found['low']:+.1f} to {found['high']:+.1f})".replace("-", "−")
    assert said.startswith(told) and (found["verdict"] == "real") == real


def test_greedily_no_published_method_invents_measurably_less() -> None:
    """By CHAIR_S or CHAIR_I at published settings, as README and the page say."""
    for path in (evidence.DOCS / "evidence.md", evidence.DOCS.parent / "README.md"):
        assert "no published method makes it invent measurably less" in " ".join(path.read_text("utf-8").split())
    found = [
        (c["verdict"] == "real", c["better"])
        for (benchmark, decoding, _), group in tables.groups(REPORT).items()
        if (benchmark, decoding) == ("chair", "greedy")
        for row in group["methods"]
        for c in row["comparisons"]
        if c["against"] == "regular" and c["metric"] in ("chair_s", "chair_i")
    ]
    assert (True, False) in found and (True, True) not in found


def test_corrected_labels_make_nothing_better() -> None:
    """What is really better than regular decoding by RePOPE's labels is so by POPE's own."""
    for group in (group for key, group in tables.groups(REPORT).items() if key[0] == "pope"):
        for row in group["methods"]:
            better = {
                c["metric"]
                for c in row["comparisons"]
                if c["against"] == "regular" and c["verdict"] == "real" and c["better"]
            }
            assert "repope_accuracy" not in better or "accuracy" in better, row["label"]


# cai-gla is for hybrid models and refuses this one; confirm is younger than these runs.
ABLE = set(method_names()) - {"cai-gla", "confirm"}


def can(method: type[Method], decoding: str) -> bool:
    return not (method.samples_only if decoding == "greedy" else method.beams_only)


def test_every_method_was_asked_everything_that_it_can_answer() -> None:
    """All of the registry: beam searches greedy only, samplers sampled only, five seeds."""
    for (benchmark, decoding, _), group in tables.groups(REPORT).items():
        asked = {row["method"]["method"] for row in group["methods"]}
        able = {name for name in ABLE if can(method_class(name), decoding)}
        assert able <= asked, (benchmark, decoding)
        assert group["facts"]["seeds"] == (1 if decoding == "greedy" else 5)
    assert len(REPORT["groups"]) == 6


def test_settings_were_chosen_by_the_rule_and_then_asked_about_the_test_photographs() -> None:
    known = tables.groups(evidence.read("trials/report.json"))
    tried = wanted.trials(Path(), list(wanted.NAMES)) + wanted.ablation_trials(Path())
    found = {}
    for one in tried:
        key = tables.TOLD if one.ask.benchmark == "chair" else tables.ASKED
        row = tables.row_of(known[key], one.method, json.loads(one.setting or "{}"))
        assert row is not None, one
        found[one] = {name: entry["value"] for name, entry in row["metrics"].items()}
    chosen = wanted.choose(tried, found)
    assert chosen == evidence.read("tuned/chosen.json")
    tuned = tables.groups(evidence.read("tuned/report.json"))
    for name, setting in chosen.items():
        for key in (tables.TOLD, tables.TOLD_LONG, tables.ASKED, tables.TOLD_SAMPLED):
            assert tables.row_of(tuned[key], name, setting) is not None, (name, key)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "benchmark"), [("trials", "pope"), ("tuned", "chair")])
def test_trials_and_tuned_runs_are_there_to_report_again(
    name: str, benchmark: str, runs: Path, tmp_path: Path
) -> None:
    folder = unpacked(name, tmp_path)
    groups = evidence.read(f"{name}/report.json")["groups"]
    rows = next(group for group in groups if group["facts"]["benchmark"] == benchmark)["methods"]
    places = [folder / row["run"] if (folder / row["run"]).is_dir() else runs / row["run"] for row in rows]
    validation = holdout.read()["validation"]
    for place in places:
        numbers = {int(Path(record.image).stem.rpartition("_")[2]) for record in read_run(place).records}
        assert numbers <= validation if name == "trials" else not numbers & validation
    done = CliRunner().invoke(app, ["report", *map(str, places), "--out", str(tmp_path / "again")])
    assert done.exit_code == 0, done.output
    made = json.loads((tmp_path / "again" / "report.json").read_text("utf-8"))["groups"]
    assert len(made) == 1 and made[0]["methods"] == rows


def test_the_report_is_made_from_the_committed_answers(runs: Path, tmp_path: Path) -> None:
    """A group of it: all greedy captions of 64 tokens, with intervals and corrected tests."""
    wanted = tables.groups(REPORT)["chair", "greedy", 64]
    folders = [str(runs / method["run"]) for method in wanted["methods"]]
    done = CliRunner().invoke(app, ["report", *folders, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    made = json.loads((tmp_path / "report.json").read_text("utf-8"))["groups"]
    assert len(made) == 1 and made[0]["facts"] == wanted["facts"]
    assert made[0]["methods"] == wanted["methods"]
    assert made[0]["cut_off"] == wanted["cut_off"]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 3, 6])
def test_score_gives_the_reports_numbers_from_the_published_files(runs: Path, shared: Path, place: int) -> None:
    asked = tables.groups(REPORT)["pope", "greedy", 8]["methods"][place]
    files = [x for kind in ("random", "popular", "adversarial") for x in ("--questions", f"coco_pope_{kind}.json")]
    questions = [str(shared / "pope" / x) if x.endswith(".json") else x for x in files]
    again = ["--labels", "repope"] if labels_in(shared / "pope") else []
    found = score("pope", "--answers", runs / asked["run"] / "samples.jsonl", *questions, *again)
    corrected = ("repope_accuracy", "repope_mcc", "coco-popular/repope_accuracy") if again else ()
    for name in ("accuracy", "f1", "coco-adversarial/accuracy", *corrected):
        assert found[name] == pytest.approx(asked["metrics"][name]["value"], abs=1e-4)
    told = tables.groups(REPORT)["chair", "greedy", 64]["methods"][place]
    found = score(
        "chair", "--answers", runs / told["run"] / "samples.jsonl", "--objects", shared / "coco_objects.json.gz"
    )
    for name in ("chair_s", "chair_i", "recall"):
        assert found[name] == pytest.approx(told["metrics"][name]["value"], abs=1e-4)


def test_the_model_is_worth_measuring() -> None:
    """The marks that were set for it before it was trained."""
    found = tables.groups(REPORT)
    regular = {key: group["methods"][0]["metrics"] for key, group in found.items()}
    for kind, least in (("random", 80), ("popular", 76), ("adversarial", 72)):
        assert regular["pope", "greedy", 8][f"coco-{kind}/accuracy"]["value"] >= least
    for tokens in (64, 128):
        assert regular["chair", "greedy", tokens]["chair_i"]["value"] < 35
        assert regular["chair", "greedy", tokens]["recall"]["value"] > 40
