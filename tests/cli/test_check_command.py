"""`seewhen check` on a tiny checkpoint: one text, a file of them taken up again, exit codes, the page."""

from __future__ import annotations

import contextlib
import json
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

import seewhen
from cli.command import Ran
from seewhen.verdicts.ceiling import ceiling

Run = Callable[..., Ran]
TEXT = "A dog and two cats. <b>A car</b> near an apple."


def lines_of(text: str) -> list[dict]:
    return [json.loads(line) for line in text.split("\n") if line]


def test_one_text(run: Run, checkpoint: Path, scene: Path) -> None:
    ran = run("check", scene, TEXT, "--model", checkpoint, "--lexicon", "coco", "--json")
    expected = seewhen.check(*seewhen.load(checkpoint), scene, TEXT, lexicon="coco")
    assert ran.code == 0 and ran.json["mentions"] == expected.to_json()["mentions"]
    assert ran.json["by"] == {"model": str(checkpoint), "lexicon": "coco", "verdict": "auto", "threshold": None}
    said = run("check", scene, TEXT, "--model", checkpoint, "--lexicon", "coco")
    assert said.code == 0
    for name in ("dog", "cat", "car", "apple"):
        assert f" {name} " in said.out
    for each in expected.mentions:  # which of the two numbers is which
        told = f"{each.object}  {each.probability:.0%} likely there; asked, log-odds {each.odds:+.2f}\n"
        assert told in said.out
    assert run("check", scene, "Nothing.", "--model", checkpoint).out == "The text names no object.\n"


@pytest.mark.parametrize(("threshold", "code"), [("100", 1), ("-100", 0)])
def test_exit_code_and_page(
    run: Run, checkpoint: Path, scene: Path, tmp_path: Path, threshold: str, code: int
) -> None:
    page = tmp_path / "page.html"
    strict = ("--threshold", threshold, "--fail-on-denied", "--html", page, "--lexicon", "coco")
    assert run("check", scene, TEXT, "--model", checkpoint, *strict).code == code
    html = page.read_text()
    assert ("<del>dog</del>" in html) == bool(code) and ("<ins>dog</ins>" in html) != bool(code)
    assert "&lt;b&gt;" in html and "<b>" not in html and "data:image/png;base64," in html
    assert "<script" not in html and "http://" not in html


@pytest.fixture
def answers(scene: Path, tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    entries = [
        {"image": str(scene), "text": TEXT},
        {"image": "missing.png", "caption": "A dog."},
        {"image": str(scene), "caption": "A bird.\u2028A car."},
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_a_file_goes_on_where_it_ended(run: Run, checkpoint: Path, answers: Path, tmp_path: Path) -> None:
    out = tmp_path / "checked.jsonl"
    arguments = ("check", "--answers", answers, "--model", checkpoint, "--lexicon", "coco")
    ran = run(*arguments, "--out", out)
    assert ran.code == 0
    assert re.search(r"1 could not be checked, the first because: .*missing\.png", ran.err)
    whole = out.read_bytes()
    first, missing, last = lines_of(out.read_text())
    assert "missing.png" in missing["error"] and [m["object"] for m in last["mentions"]] == ["bird", "car"]
    assert first["mentions"] and lines_of(run(*arguments).out) == lines_of(out.read_text())
    for kept in (0, len(whole) // 3, whole.index(b"\n") + 1, len(whole) - 1):
        out.write_bytes(whole[:kept])  # a process that was ended here
        assert run(*arguments, "--out", out).code == 0
        assert out.read_bytes() == whole


def test_a_first_picture_that_is_missing_does_not_end_it(
    run: Run, answers: Path, scene: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --model the first picture that can be read says which model answers."""
    asked: list[str] = []
    monkeypatch.setattr(
        "seewhen.cli.check._checker", lambda _, flags, __: asked.append(flags.model) or (lambda *__: 1 / 0)
    )
    with contextlib.suppress(ZeroDivisionError):
        entries = [{"image": "missing.png", "text": "A dog."}, {"image": str(scene), "text": "A dog."}]
        answers.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        run("check", "--answers", answers)
    assert len(asked) == 1


def test_a_file_of_others_is_not_gone_on_with(run: Run, checkpoint: Path, answers: Path, tmp_path: Path) -> None:
    out = tmp_path / "checked.jsonl"
    arguments = ("check", "--answers", answers, "--model", checkpoint, "--out", out)
    assert run(*arguments, "--lexicon", "coco").code == 0
    before = out.read_bytes()
    otherwise = run(*arguments, "--lexicon", "open")
    assert otherwise.code == 2 and "lexicon" in otherwise.err
    answers.write_text(answers.read_text().replace("two cats", "one cat"))
    assert "does not belong" in run(*arguments, "--lexicon", "coco").err
    assert out.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("scene.png",),
        ("scene.png", ""),
        ("scene.png", "A dog.", "--answers", "a.jsonl"),
        ("scene.png", "A dog.", "--out", "b.jsonl"),
        ("--answers", "none.jsonl"),
        ("--answers", "none.jsonl", "--json"),
        ("none.png", "A dog."),
    ],
)
def test_what_does_not_go_together(run: Run, arguments: tuple[str, ...]) -> None:
    ran = run("check", *arguments)
    assert ran.code == 2 and ran.err.startswith("error: ") and ran.err.count("\n") == 1


def test_a_lexicon_that_is_not_there_is_told_first(run: Run, scene: Path) -> None:
    ran = run("check", scene, "A dog.", "--lexicon", "nowhere.txt", "--model", "packaged")
    assert ran.code == 2 and "nowhere.txt" in ran.err


# -- calibrate confirm, diagnose ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures that show about half of eight objects each, whatever the tiny model says."""
    folder = tmp_path_factory.mktemp("labels")
    names, dice = ["dog", "cat", "car", "apple", "bus", "clock", "tie", "cow"], random.Random(2)
    (folder / "words.txt").write_text("\n".join(names))
    lines = []
    for number in range(40):
        Image.frombytes("RGB", (16, 16), dice.randbytes(768)).save(folder / f"{number}.png")
        lines.append({"image": f"{number}.png", "objects": [name for name in names if dice.random() < 0.5]})
    (folder / "labels.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_calibrate_and_use_it(run: Run, checkpoint: Path, scene: Path, labels: Path, tmp_path: Path) -> None:
    out = tmp_path / "verdict.json"
    lexicon = ("--lexicon", labels / "words.txt")
    material = ("--data", labels / "labels.jsonl", *lexicon, "--max-new-tokens", 48, "--batch", 20)
    ran = run("calibrate", "confirm", "--model", checkpoint, *material, "--keep", "0.9", "--out", out)
    assert ran.code == 0 and f"confirm:verdict={out}" in ran.out and "90%" in ran.out
    about = json.loads(out.read_text())["about"]
    assert about["images"] == 40 and about["keep"] == 0.9 and about["invented"] >= 20
    assert run("check", scene, "A dog.", "--model", checkpoint, "--verdict", out, *lexicon).code == 0
    method = f"confirm:verdict={out},lexicon={labels / 'words.txt'}"
    assert run("describe", scene, "--model", checkpoint, "-n", 12, "--method", method).code == 0


def test_calibrate_refuses_what_cannot_be_kept(run: Run, checkpoint: Path, labels: Path, tmp_path: Path) -> None:
    out = tmp_path / "verdict.json"
    material = ("--data", labels / "labels.jsonl", "--lexicon", labels / "words.txt", "--limit", 3)
    ran = run("calibrate", "confirm", "--model", checkpoint, *material, "--out", out)
    assert ran.code == 2 and ran.err.rstrip().splitlines()[-1].startswith("error: A verdict needs 20")
    assert not out.exists()


def test_a_file_whose_pictures_or_results_cannot_be_meant(
    run: Run, answers: Path, scene: Path, tmp_path: Path
) -> None:
    """Refused before a model is loaded; one picture that is missing is no reason to."""
    before = answers.read_text()
    ran = run("check", "--answers", answers, "--out", answers)
    assert ran.code == 2 and "is the file of the answers" in ran.err and answers.read_text() == before
    ran = run("check", "--answers", answers, "--images", tmp_path / "nowhere")
    assert ran.code == 2 and "There is no folder" in ran.err
    lost = tmp_path / "lost.jsonl"
    lost.write_text('{"image": "missing.png", "text": "A dog."}\n')
    ran = run("check", "--answers", lost)
    assert ran.code == 2 and "None of the pictures can be read" in ran.err
    lost.write_text(lost.read_text() + json.dumps({"image": str(scene), "text": "A dog."}) + "\n")
    first, second = lines_of(run("check", "--answers", lost).out)
    assert "error" in first and second["by"]["model"] == "packaged" and second["mentions"]


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--keep", "1"), "share to keep"),
        (("--keep", "nan"), "share to keep"),
        (("--drafts", "17"), "equal to 16"),
    ],
)
def test_calibrate_refuses_before_anything_is_loaded(
    run: Run, labels: Path, tmp_path: Path, flags: tuple[str, ...], told: str
) -> None:
    from seewhen.methods.confirm import MOST_DRAFTS

    nowhere = ("--model", tmp_path / "nowhere", "--data", labels / "labels.jsonl")
    ran = run("calibrate", "confirm", *nowhere, *flags, "--out", tmp_path / "verdict.json")
    assert ran.code == 2 and told in ran.err and MOST_DRAFTS == 16


def test_diagnose_in_words_and_as_json(
    run: Run, checkpoint: Path, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seewhen.runs.diagnosis.ceiling", partial(ceiling, replicates=60))
    material = ("--data", labels / "labels.jsonl", "--lexicon", labels / "words.txt", "--max-new-tokens", 32)
    told = run("diagnose", checkpoint, *material, "--decoding", "sampled", "--batch", 20)
    assert told.code == 0
    first, second = told.out.splitlines()[:2]
    assert first.startswith("sampled captions of 40 images") and "recoverable" in second
    facts = run("diagnose", checkpoint, *material, "--decoding", "sampled", "--batch", 20, "--json").json
    share = facts["sampled"]["recoverable"]
    assert f"{100 * share['value']:.1f} points ({100 * share['low']:.1f} to {100 * share['high']:.1f})" in second
    assert set(facts["sampled"]["signals"]) == {"odds", "logprob", "entropy", "position", "elsewhere", "together"}
    assert len(facts["sampled"]["calibration"]) == 8
    looked = facts["diagnostics"]
    assert looked["pictures"] == 40 and f"({looked['pictures']} pictures" in told.out
    assert f"{looked['divergence']:.3f} nats" in told.out and f"{looked['calibration_error']:.3f}" in told.out
    assert ("predictions" in facts) and ("beside the ladder" in told.out) == bool(facts["predictions"])
    assert facts["predictions"] or "No prediction" in told.out


def test_diagnose_of_photographs_without_labels(run: Run, checkpoint: Path, labels: Path) -> None:
    short = ("--limit", 6, "--max-new-tokens", 12)
    told = run("diagnose", checkpoint, labels, *short)
    assert told.code == 0 and told.out.startswith("recoverable share: it takes labelled pictures")
    facts = run("diagnose", checkpoint, labels, *short, "--json").json
    assert facts["diagnostics"]["pictures"] == 6 and facts["diagnostics"]["asked_auroc"] is None
    assert "greedy" not in facts
    refused = run("diagnose", checkpoint, labels, "--data", labels / "labels.jsonl")
    assert refused.code == 2 and "PHOTOS have no labels" in refused.err
    assert run("diagnose", checkpoint, labels / "nowhere").code == 2


def test_diagnose_refuses_first(run: Run, checkpoint: Path) -> None:
    assert "no folder or file" in run("diagnose", checkpoint, "--data", "nowhere").err
    assert run("diagnose", checkpoint, "--scenes", 2).code == 2


def nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seewhen.asking.opening.open_model", lambda *_: pytest.fail("a model was loaded"))


def test_too_few_pictures_are_refused_before_the_model_is_loaded(
    run: Run, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_is_loaded(monkeypatch)
    ran = run("diagnose", checkpoint, "--scenes", 8, "--limit", 4)
    assert ran.code == 2 and "needs 5 images or more, and there are 4" in ran.err


def test_a_text_that_is_too_long_is_refused_before_the_model_is_loaded(
    run: Run, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_is_loaded(monkeypatch)
    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    ran = run("check", tmp_path / "a.png", "dog " * 10_001, "--model", checkpoint)
    assert ran.code == 2 and "more than 10,000 words" in ran.err
