"""A stranger's checkpoint runs no code of its own and asks nothing, whichever command or function reads it."""

from __future__ import annotations

import builtins
import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from command import Ran, in_process
from every import commands
from PIL import Image

import seewhen
from seewhen.asking.doctor import model_facts
from seewhen.backbones.loading import load_config, load_model, load_processor
from seewhen.errors import InvalidInput, SeewhenError, UnsupportedModel

# What a stranger's module does: it leaves a mark beside itself, then behaves.
CODE = """
from pathlib import Path
from transformers import PreTrainedConfig
Path({mark!r}).write_text("ran")
class Theirs(PreTrainedConfig):
    model_type = "theirs"
"""
AUTO = {
    name: "theirs.Theirs"
    for name in (
        "AutoConfig",
        "AutoProcessor",
        "AutoTokenizer",
        "AutoImageProcessor",
        "AutoModelForImageTextToText",
    )
}
COMMANDS: dict[str, list[str]] = {
    "describe": ["PICTURE", "--model", "DIR"],
    "ask": ["PICTURE", "hi", "--model", "DIR"],
    "compare": ["PICTURE", "--model", "DIR"],
    "try": ["DIR", "PICTURE", "--no-open", "--out", "OUT"],
    "demo": ["--model", "DIR", "--out", "OUT"],
    "doctor": ["--model", "DIR"],
    "eval": ["pope", "--model", "DIR", "--out", "OUT"],
    "sweep": ["pope", "--grid", "gamma=0.1", "--model", "DIR", "--out", "OUT"],
    "figure": ["case", "--model", "DIR", "--out", "OUT.png"],
    "view": ["RUN", "--model", "DIR", "--no-open", "--out", "OUT.html"],
    "bench": ["DIR"],
    "serve": ["--model", "DIR", "--port", "0"],
    "check": ["PICTURE", "A cat.", "--model", "DIR"],
    "diagnose": ["DIR", "--scenes", "8"],
    "calibrate confirm": ["--model", "DIR", "--scenes", "8", "--out", "OUT"],
    "calibrate vti": ["--model", "DIR", "--out", "OUT"],
    "calibrate ict": ["--model", "DIR", "--out", "OUT"],
}
FUNCTIONS: dict[str, Callable[[Path], Any]] = {
    "load": seewhen.load,
    "load_model": load_model,
    "load_processor": load_processor,
    "load_config": load_config,
    "model_facts": lambda path: model_facts(str(path)),
}


def packaged_copy(folder: Path) -> Path:
    """The packaged model, to be made worse."""
    from seewhen.backbones.loading import PACKAGED_PATH

    return Path(shutil.copytree(PACKAGED_PATH, folder))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.fixture(params=["config", "processor"])
def stranger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkpoint whose configuration, or whose processor, names a class in a module of its own."""
    folder = packaged_copy(tmp_path / "theirs")
    mark = tmp_path / "mark"
    (folder / "theirs.py").write_text(CODE.format(mark=str(mark)))
    if request.param == "config":
        change(folder / "config.json", model_type="theirs", auto_map=AUTO)
    else:
        for name in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
            if (folder / name).exists():
                change(folder / name, processor_class="Theirs", auto_map=AUTO)
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 20))
    monkeypatch.setattr(builtins, "input", lambda text="": pytest.fail(f"asked on stdin: {text[:80]}"))
    yield folder
    assert not mark.exists(), "the stranger's code ran"


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    return in_process(monkeypatch, capsys)


def test_every_command_that_takes_a_model_is_here() -> None:
    takes = {name for name, command in commands() if any(each.name == "model" for each in command.params)}
    assert takes == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_run_no_code_of_a_checkpoint(
    command: str, stranger: Path, call: Callable[..., Ran], tmp_path: Path
) -> None:
    picture = tmp_path / "a.png"
    Image.new("RGB", (32, 32)).save(picture)
    if command == "view":
        asked = ["pope", "--scenes", "1", "--limit", "1", "--method", "regular", "--no-controls"]
        assert call("eval", *asked, "--run", tmp_path / "run").code == 0
    places = {"DIR": stranger, "PICTURE": picture, "RUN": tmp_path / "run", "OUT": tmp_path / "out"}
    words = [
        next((w.replace(k, str(v)) for k, v in places.items() if w.startswith(k)), w) for w in COMMANDS[command]
    ]
    ran = call(*command.split(), *words)
    if command == "doctor" and ran.code == 0:  # reads the configuration alone
        return
    assert ran.code == 2 and "never run" in ran.err.strip().splitlines()[-1], ran


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_run_no_code_of_a_checkpoint(name: str, stranger: Path) -> None:
    try:
        FUNCTIONS[name](stranger)
    except SeewhenError as error:
        assert "remote code is never run" in str(error)


@pytest.mark.parametrize("reader", [seewhen.load, load_model, load_processor, load_config])
def test_asking_for_remote_code_is_refused(reader: Callable[..., Any], tmp_path: Path) -> None:
    folder = packaged_copy(tmp_path / "copy")
    with pytest.raises(UnsupportedModel, match="never run"):
        reader(folder, trust_remote_code=True)


@pytest.fixture
def unpickled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What `torch.load` was called with."""
    seen: list[object] = []
    monkeypatch.setattr(torch, "load", lambda file, *args, **kwargs: seen.append(file) or {})
    return seen


def test_pickled_weights_are_refused(tmp_path: Path, unpickled: list[object]) -> None:
    folder = packaged_copy(tmp_path / "pickled")
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match="Only safetensors are read"):
        seewhen.load(folder)
    assert not unpickled


@pytest.mark.parametrize("embedded", [False, True])
def test_pickled_adapters_are_refused(tmp_path: Path, embedded: bool, unpickled: list[object]) -> None:
    pytest.importorskip("peft")
    folder = packaged_copy(tmp_path / "model")
    adapter = folder if embedded else tmp_path / "adapter"
    adapter.mkdir(exist_ok=True)
    settings = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "base_model_name_or_path": str(folder)}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    torch.save({}, adapter / "adapter_model.bin")
    with pytest.raises(InvalidInput, match=r"adapter_model\.safetensors"):
        seewhen.load(folder, adapter=None if embedded else adapter)
    assert not unpickled


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "processor_config.json"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"[" * 5000, b'{"a": ' + b"9" * 5000 + b"}", b"null"])
def test_broken_checkpoints_are_refused_in_a_line(tmp_path: Path, name: str, content: bytes) -> None:
    folder = packaged_copy(tmp_path / "broken")
    (folder / name).write_bytes(content)
    with pytest.raises(SeewhenError) as told:
        seewhen.load(folder)
    assert "\n" not in str(told.value)
