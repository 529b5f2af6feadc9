"""Reports: groups, verdicts, published figures, tables that parse, a page that asks for nothing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

import seewhen
from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.chair import Chair
from seewhen.benchmarks.pope import Pope
from seewhen.cli import app
from seewhen.errors import InvalidInput
from seewhen.runs import report
from seewhen.runs.grid import Grid, latex_text, to_latex, to_markdown
from seewhen.runs.plots import Dot, dot_plot, line_plot, ticks
from seewhen.runs.report import analyse, paper_model, primary_metric, read_runs
from seewhen.runs.report_files import write_report
from seewhen.runs.scoring import result_of, score_records, write_counts
from seewhen.runs.store import Record, RunStore
from seewhen.runs.tables import group_grids, overview_grids, paper_grids, score_grid
from seewhen.runs.wording import findings, measured, sentence, title

BENCH = Pope(
    tuple(
        Sample(
            f"coco-random/{i}", f"{i // 6}.jpg", f"Is there a thing {i}?", "yes" if i % 2 else "no", "coco-random"
        )
        for i in range(600)
    )
)


def config(label, mode="greedy", model="llava-1.5-7b-hf", **parameters):
    return {
        "benchmark": {
            "name": "pope",
            "data": "files",
            "split": "coco-random",
            "settings": {"parser": "C"},
            "style": "plain",
            "questions": "x",
        },
        "model": {"name": model, "dtype": "float16"},
        "method": {
            "label": label,
            "fingerprint": f"{label}-{parameters}",
            "method": label,
            "parameters": parameters,
        },
        "decoding": {"mode": mode, "max_new_tokens": 8},
        "versions": {"seewhen": "0"},
    }


def make(path, label, skill, seeds=1, failed=(), same_as=None, **options):
    """A run whose answers are right with probability `skill`; `same_as` repeats another run's luck."""
    rng = np.random.default_rng(sum(map(ord, same_as or label)) + seeds)
    records = [
        Record(
            s.id,
            seed,
            s.image,
            "" if s.id in failed else ("Yes" if (rng.random() < skill) == (s.truth == "yes") else "No"),
            2,
            "broken image" if s.id in failed else "",
        )
        for seed in range(seeds)
        for s in BENCH.samples()
    ]
    with RunStore.open(
        path, config(label, "sample" if seeds > 1 else "greedy", **options), {"device_name": "x"}
    ) as store:
        store.append(records)
        store.note_timing(
            {"samples": len(records), "tokens": 2 * len(records), "seconds": 10.0 if label == "regular" else 15}
        )
        scored = score_records(BENCH, records, range(seeds))
        write_counts(path, scored)
        store.finish([r.key for r in records], result_of(BENCH, scored, records))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    make(folder / "a", "regular", 0.80)
    make(folder / "b", "cai", 0.93)
    make(folder / "c", "vcd", 0.81)
    make(folder / "d", "pai", 0.80, same_as="regular")
    make(folder / "e", "only", 0.60, failed=("coco-random/0", "coco-random/1"))
    make(folder / "f", "regular", 0.80, seeds=3)
    make(folder / "g", "min-p", 0.90, seeds=3)
    make(folder / "h", "cai", 0.905, seeds=3)
    return folder


@pytest.fixture(scope="module")
def groups(runs):
    return analyse(read_runs([runs]))


def verdict(line, against="regular", metric="accuracy"):
    (found,) = [c for c in line.comparisons if c.against == against and c.metric.name == metric]
    return found


def test_runs_that_differ_in_more_than_the_method_are_kept_apart(groups):
    assert [[line.label for line in group.lines] for group in groups] == [
        ["regular", "cai", "only", "pai", "vcd"],
        ["regular", "min-p", "cai"],
    ]
    assert groups[0].title == "POPE coco-random (files, 100 images), llava-1.5-7b-hf, greedy"
    assert groups[1].title.endswith("sampled, 3 seeds")


@pytest.mark.parametrize(
    ("temperature", "said"), [(None, "sampled, "), (1.0, "sampled, "), (1 / 3, "sampled at temperature 0.33, ")]
)
def test_another_temperature_than_one_is_said(groups, temperature, said):
    line = groups[1].line("regular")
    decoding = {**line.run.config["decoding"], "temperature": temperature}
    run = replace(line.run, config={**line.run.config, "decoding": decoding})
    (group,) = analyse([run])
    assert said in group.title
    assert ("temperature" in group.facts) == (said != "sampled, ")


def test_marks_are_explained_only_where_there_is_something_to_mark(groups):
    """Without regular decoding no mark means nothing, not that there is no difference."""
    group = next(each for each in groups if each.line("regular") and len(each.lines) > 1)
    assert "No mark" in score_grid(group, group.metrics, "Scores").notes[0]
    others = replace(group, lines=tuple(line for line in group.lines if line.label != "regular"))
    alone = replace(group, lines=tuple(line for line in group.lines if line.label == "regular"))
    for lonely in (others, alone):
        (note, *_) = score_grid(lonely, group.metrics, "Scores").notes
        assert note.startswith("Brackets: 95% interval") and "Regular" not in note and "No mark" not in note


def test_the_overview_turns_where_methods_are_many(groups, monkeypatch):
    (wide,) = overview_grids(groups)
    monkeypatch.setattr("seewhen.runs.tables._WIDE", 2)
    (long,) = overview_grids(groups)
    assert wide.header[:2] == ("Setting", "Metric") and long.header[0] == "Method"
    assert [row[2:] for row in wide.rows] == list(zip(*(row[1:] for row in long.rows), strict=True))
    assert [row[0] for row in long.rows] == list(wide.header[2:])
    assert list(long.header[1:]) == [f"{row[0]}: {row[1]}" for row in wide.rows]


def test_an_interval_without_zero_that_the_test_does_not_confirm_is_put_into_words(groups):
    greedy, _ = groups
    line = greedy.line("vcd")
    found = verdict(line)
    for changed, words in ((99, "The interval only just leaves out zero"), (19, "Only 19 of 100 images count")):
        difference = replace(found.difference, low=-1.4, high=-0.01, p=0.08, images=100, changed=changed)
        said = sentence(line, replace(found, difference=difference, p_holm=0.7))
        assert "is not significantly different" in said and words in said


def test_verdicts(groups):
    greedy, sampled = groups
    cai, only, pai, vcd = (verdict(greedy.line(x)) for x in ("cai", "only", "pai", "vcd"))
    assert (cai.verdict, cai.gain) == ("real", 1)
    assert (only.verdict, only.gain) == ("real", -1)
    assert pai.verdict == "same"
    assert vcd.verdict == "open"
    assert cai.tests == 4
    assert cai.p_holm >= cai.difference.p
    assert only.images_left_out == 1
    # When sampling, most of the gain is the plausibility cut: real against regular, open against min-p.
    assert verdict(sampled.line("cai")).verdict == "real"
    assert verdict(sampled.line("cai"), "min-p").verdict == "open"


def test_p_values_near_the_line_come_from_more_swaps(runs, monkeypatch):
    monkeypatch.setattr(report, "LEVEL", 0.3)
    found = {False: [], True: []}
    for group in analyse(read_runs([runs / name for name in "abc"])):
        for c in (c for line in group.lines for c in line.comparisons):
            found[0.15 < c.p_holm < 0.6].append(c.difference.p)
    assert all(found.values())
    # p is a whole number of swaps, the one seen included, over all of them
    assert all(p * 100_001 == pytest.approx(round(p * 100_001), abs=1e-6) for p in found[True])
    assert any(p * 10_000 == pytest.approx(round(p * 10_000), abs=1e-6) for p in found[False])


def test_what_was_asked_and_taken_back_stands_beside_the_speed(tmp_path):
    make(tmp_path / "a", "regular", 0.8)
    path = make(tmp_path / "b", "confirm", 0.8) / "result.json"
    result = json.loads(path.read_text())
    result["facts"] = {"asked": 2.84, "taken_back": 0.41, "steps_per_token": 1.27}
    path.write_text(json.dumps(result))
    (group,) = analyse(read_runs([tmp_path / "a", tmp_path / "b"]))
    (grid,) = [grid for grid in group_grids(group) if grid.title == "Speed"]
    asked = [dict(zip(grid.header, row, strict=True)) for row in grid.rows]
    assert [row["Asked"] for row in asked] == ["—", "2.8"]
    assert [row["Taken back"] for row in asked] == ["—", "0.41"]
    assert [row["Steps/token"] for row in asked] == ["—", "1.27"]


def test_words(groups):
    told = findings(groups[0])
    assert any(
        t.startswith("CAI is better than Regular: Accuracy +") and "This difference is real." in t for t in told
    )
    assert any(t.startswith("ONLY is worse than Regular") for t in told)
    assert any(t.startswith("VCD is not significantly different from Regular") for t in told)
    assert "PAI and Regular score alike on every image: Accuracy does not move at all." in told
    assert any("Not run here: min-p" in t for t in told)
    assert any(t == "ONLY: 2 samples have no answer (broken image) and are left out." for t in told)
    told = findings(groups[1])
    assert any(t.startswith("CAI is not significantly different from min-p") for t in told)
    assert title("cai:contrast=3:attention") == "CAI:contrast=3:attention"
    assert all(seewhen.method(title(name)) == seewhen.method(name) for name in seewhen.method_names())
    assert title("cai+dola") == "CAI+DoLa"
    assert measured({"value": 100.0, "low": 100.0, "high": 100.0, "flat": True}) == "100.00 (no variation)"


def test_chair_is_told_with_its_price(tmp_path):
    """A method that says less has a lower CHAIR and a lower recall: both are in the words."""
    chair = Chair(
        {str(i): frozenset({"dog", "person", "cat"}) for i in range(1, 61)}, tuple(map(str, range(1, 61)))
    )
    for label, texts in (
        ("regular", ("A man, a dog, a cat and a bus.", "A man, a dog and a cat.")),
        ("pai", ("A man.", "A man and a dog.")),
    ):
        made = config(label)
        made["benchmark"] |= {"name": "chair", "settings": {"lemmatizer": "offline"}}
        records = [Record(str(i), 0, str(i), texts[i % 2], 9) for i in range(1, 61)]
        with RunStore.open(tmp_path / label, made, {}) as store:
            store.append(records)
            scored = score_records(chair, records, (0,))
            write_counts(tmp_path / label, scored)
            store.finish([r.key for r in records], result_of(chair, scored, records))
    (group,) = analyse(read_runs([tmp_path]))
    told = findings(group)
    assert any(t.startswith("PAI is better than Regular: CHAIR_S −50.00") for t in told)
    assert any(t.startswith("PAI is worse than Regular: Recall −") for t in told)


def test_published_figures_stand_beside(groups):
    cell = groups[0].published["cai", "accuracy"]
    assert (cell.value, cell.number) == (89.24, 2)
    names = [grid.title for grid in group_grids(groups[0])]
    assert names == ["Scores", "Paired differences", "Measured next to published", "Speed"]
    pope = paper_grids(groups)[1]
    row = next(r for r in pope.rows if r[0] == "coco random CAI")
    assert row[1].startswith("89.24 (1) (2) | measured 9")
    slip = paper_grids([])[4]
    assert any("86.68 (" in text for r in slip.rows for text in r)
    assert any("is 86.01" in note for note in slip.notes)


def test_other_models_and_scenes_have_no_published_figures(tmp_path):
    make(tmp_path / "a", "regular", 0.8, model="packaged")
    (group,) = analyse(read_runs([tmp_path]))
    assert not group.published
    assert [paper_model(x) for x in ("llava-hf/llava-1.5-7b-hf", "Qwen/Qwen-VL-Chat", "Qwen/Qwen2-VL-7B")] == [
        "LLaVA-1.5",
        "Qwen-VL",
        None,
    ]


def test_one_method_with_two_settings_gets_two_names(tmp_path):
    make(tmp_path / "a", "cai", 0.8, **seewhen.method("cai").parameters())
    make(tmp_path / "b", "cai", 0.9, **seewhen.method("cai", contrast=3.0).parameters())
    make(tmp_path / "c", "cai", 0.7, **seewhen.method("cai:paper").parameters())
    (group,) = analyse(read_runs([tmp_path]))
    assert [line.label for line in group.lines] == ["cai", "cai:contrast=3", "cai:paper"]


def test_two_settings_of_a_method_that_is_not_installed_have_two_names(tmp_path):
    make(tmp_path / "a", "mine", 0.8, strength=1.0, layer=3)
    make(tmp_path / "b", "mine", 0.9, strength=2.0, layer=3)
    (group,) = analyse(read_runs([tmp_path]))
    assert [line.label for line in group.lines] == ["mine:strength=1.0,layer=3", "mine:strength=2.0,layer=3"]


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.addresses, self.open = set(), [], []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_all_files_are_written_and_the_page_asks_for_nothing(groups, tmp_path):
    files = {path.name: path.read_text() for path in write_report(groups, tmp_path)}
    assert set(files) == {"report.md", "report.tex", "report.json", "index.html"}
    page = Page()
    page.feed(files["index.html"])
    assert not page.open
    assert not page.addresses
    assert page.tags.isdisjoint({"script", "link", "img", "iframe"})
    assert "default-src 'none'" in files["index.html"]
    assert not re.findall(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", files["index.html"])
    data = json.loads(files["report.json"])
    cai = next(m for m in data["groups"][0]["methods"] if m["label"] == "cai")
    assert cai["published"]["accuracy"]["value"] == 89.24
    assert {c["verdict"] for c in cai["comparisons"] if c["metric"] == "accuracy"} == {"real"}
    assert files["report.tex"].count(r"\begin{tabular}") == files["report.tex"].count(r"\end{tabular}") >= 6
    assert "CAI is better than Regular" in files["report.md"]


def test_the_same_runs_give_the_same_report(runs, groups, tmp_path):
    first = write_report(groups, tmp_path / "a")
    second = write_report(analyse(read_runs([runs])), tmp_path / "b")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in second]


def test_hostile_names_stay_text(tmp_path):
    nasty = "<script>alert(1)</script>|&_%"
    make(tmp_path / "a", nasty, 0.8)
    groups = analyse(read_runs([tmp_path]))
    files = {path.name: path.read_text() for path in write_report(groups, tmp_path / "out")}
    assert "<script>" not in files["index.html"]
    assert r"\|" in files["report.md"]
    assert latex_text("50% of $x_1 & {y}") == r"50\% of \$x\_1 \& \{y\}"


def test_grids_render():
    grid = Grid("T", ("a", "b"), (("x|y", "1 [0, 2] ▲"),), ("note",))
    assert to_markdown(grid) == "### T\n\n| a | b |\n|---|--:|\n| x\\|y | 1 [0, 2] ▲ |\n\nnote\n"
    assert r"x$|$y & 1 [0, 2] $^{\blacktriangle}$ \\" in to_latex(grid)


def test_unfinished_and_missing_runs_are_named(tmp_path):
    with RunStore.open(tmp_path / "a", config("cai"), {}) as store:
        store.append([Record("x", 0, "i", "yes")])
    with pytest.raises(InvalidInput, match="is not finished"):
        read_runs([tmp_path])
    with pytest.raises(InvalidInput, match="There is no directory"):
        read_runs([tmp_path / "nothing"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInput, match="not a run directory"):
        read_runs([tmp_path / "empty"])


def test_primary_metric():
    assert primary_metric("chair", {"chair_i": 1, "chair_s": 1}).name == "chair_s"
    assert primary_metric("chair", {"chair_i": 1, "chair_s": 1}, "chair_i").better == -1
    assert primary_metric("mme", {"count/score": 1}).name == "count/score"
    with pytest.raises(InvalidInput, match="no metric"):
        primary_metric("chair", {"chair_i": 1}, "accuracy")


def test_the_command(runs, tmp_path):
    outcome = CliRunner().invoke(app, ["report", str(runs), "--out", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    assert "This difference is real." in outcome.output
    assert (tmp_path / "index.html").exists()


def test_plots_hold_every_point():
    svg = dot_plot([Dot("a", 1, 0, 2), Dot("b", 3, 3, 3, published=4.0)], "x", zero=1)
    assert svg.count("<circle") == 2
    assert svg.count('class="published"') == 1
    svg = line_plot({"a": [(1, 2, 1, 3), (2, 3, 2, 4)], "b": [(1, 2, 1, 3)]}, "l_s", "acc", ("a", 2))
    assert svg.count('class="dot"') == 3
    assert svg.count('class="chosen"') == 1
    assert ticks(0, 10) == [0, 2, 4, 6, 8, 10]
    assert ticks(-0.3, 0.31) == [-0.2, 0.0, 0.2]
    assert ticks(5, 5) == [5]
