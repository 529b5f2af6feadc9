"""Where calibration samples come from, and the command."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrating import TinyProcessor, pictures
from safetensors.torch import save_file
from typer.testing import CliRunner

import tiny
from seewhen.backbones import loading
from seewhen.cli import app
from seewhen.errors import InvalidInput
from seewhen.methods.calibration import Directions
from seewhen.methods.calibration_samples import demonstrations, questions
from seewhen.scenes import CATEGORIES, dataset, render


def test_scenes_differ_in_what_nobody_saw() -> None:
    scenes = dataset("train", 6, seed=7)
    found = demonstrations(None, None, 6)
    for scene, one in zip(scenes, found, strict=True):
        assert one.faithful != one.hallucinated
        named = {name for name in CATEGORIES if f" {name}" in one.hallucinated}
        assert named - set(scene.names), "the hallucinated caption names something that is not there"


def test_scene_questions_have_both_answers_and_boxes() -> None:
    found = questions(None, None, 20)
    answers = [one.answer for one in found]
    assert len(found) == 20 and answers.count("yes") == answers.count("no") == 10
    assert all(one.box is None for one in found if one.answer == "no")
    assert sum(one.box is not None for one in found) >= 5
    held_out = {render(scene).tobytes() for scene in dataset("test", 20)}
    assert not any(one.image.tobytes() in held_out for one in found)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pictures with a samples file; the tiny model is what `load` gives."""
    lines: list[dict[str, Any]] = []
    for index, image in enumerate(pictures(8)):
        image.save(tmp_path / f"{index}.png")
        lines.append({"image": f"{index}.png", "faithful": "a cat", "hallucinated": f"a dog {index}"})
        lines[-1] |= {"question": "is it there", "answer": "yes" if index % 2 else "no", "box": [0, 0, 9, 9]}
    (tmp_path / "calibration.jsonl").write_text("\n".join(map(json.dumps, lines)))
    # A command lays the weights of what it opens in its own way.
    loaded = loading.Loaded(copy.deepcopy(tiny.model("llava")), TinyProcessor())
    monkeypatch.setattr(loading, "load", lambda *args, **kwargs: loaded)
    return tmp_path


@pytest.mark.parametrize("name", ["vti", "ict"])
def test_command(folder: Path, name: str) -> None:
    out = folder / f"{name}.safetensors"
    options = ["--trials", "2"] if name == "vti" else ["--group", "8"]
    result = CliRunner().invoke(app, ["calibrate", name, "--images", str(folder), "--out", str(out), *options])
    assert result.exit_code == 0, result.output
    assert f"--method {name}:directions={out}" in result.output.replace("\n", "")
    assert Directions.load(out).method == name and len(Directions.load(out).provenance["images"]) == 8


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no file"):
        demonstrations(tmp_path, None, 3)
    samples = tmp_path / "calibration.jsonl"
    samples.write_text('{"image": "a.png"}\n')
    with pytest.raises(InvalidInput, match="line 1: question: Field required"):
        questions(tmp_path, None, 3)
    samples.write_text("not json\n")
    with pytest.raises(InvalidInput, match="line 1: not JSON"):
        questions(tmp_path, samples, 3)


def test_tensors_of_something_else_are_no_directions(tmp_path: Path) -> None:
    save_file({"entropy": torch.zeros(2)}, tmp_path / "trace.safetensors")
    with pytest.raises(InvalidInput, match="holds no directions"):
        Directions.load(tmp_path / "trace.safetensors")
