"""How a model is loaded can be said in every command that loads one, and is part of a run."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
import typer

import seewhen
from seewhen.backbones.loading import load_model
from seewhen.cli import app, main
from seewhen.cli.options import LoadingFlags
from seewhen.errors import InvalidInput
from seewhen.runs.evaluate import Ask, evaluate
from seewhen.runs.store import RunConflict, read_run

LOADING = [
    *(["describe"], ["ask"], ["compare"], ["demo"], ["eval"], ["sweep"], ["figure"], ["serve"]),
    *(["calibrate", "vti"], ["calibrate", "ict"]),
]


@pytest.mark.parametrize("path", LOADING, ids=" ".join)
def test_every_command_that_loads_a_model_takes_them(path):
    command = typer.main.get_command(app)
    for name in path:
        command = command.commands[name]
    given = {option for parameter in command.params for option in parameter.opts}
    assert {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(LoadingFlags)} <= given


@pytest.fixture(scope="module")
def adapter(checkpoint, tmp_path_factory):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(1)
    tuned = peft.get_peft_model(
        load_model(checkpoint, device="cpu"),
        peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "o_proj"], init_lora_weights=False),
    )
    directory = tmp_path_factory.mktemp("adapter")
    tuned.save_pretrained(directory)
    return directory


def ask(checkpoint, **options) -> Ask:
    return Ask("pope", split="test-random", scenes=2, model=str(checkpoint), max_new_tokens=3, batch=8, **options)


def answers(path):
    return [record.answer for record in read_run(path).records]


def test_an_adapter_changes_the_answers_and_the_configuration(checkpoint, adapter, tmp_path):
    regular = seewhen.method("regular")
    plain, _ = evaluate(ask(checkpoint), regular, tmp_path)
    tuned, _ = evaluate(ask(checkpoint, adapter=str(adapter)), regular, tmp_path)
    assert plain != tuned and answers(plain) != answers(tuned)
    assert "adapter" not in read_run(plain).config["model"]  # older runs can be taken up again
    assert read_run(tuned).config["model"]["adapter"]["name"] == str(adapter)
    with pytest.raises(RunConflict, match="adapter"):
        evaluate(ask(checkpoint), regular, tmp_path, directory=tuned)
    # The same name with other files is another adapter.
    (adapter / "adapter_config.json").write_text((adapter / "adapter_config.json").read_text() + "\n")
    with pytest.raises(RunConflict, match=r"adapter\.weights"):
        evaluate(ask(checkpoint, adapter=str(adapter)), regular, tmp_path, directory=tuned)


def test_quantised_and_whole_weights_do_not_mix(checkpoint, tmp_path):
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    regular = seewhen.method("regular")
    path, _ = evaluate(ask(checkpoint, quantization="8bit"), regular, tmp_path)
    assert len(answers(path)) == 12 and not read_run(path).failures
    found = read_run(path).config["model"]["quantization"]
    assert found["bits"] == "8bit" and found["library"] == "bitsandbytes" and found["version"]
    with pytest.raises(RunConflict, match="quantization"):
        evaluate(ask(checkpoint), regular, tmp_path, directory=path)


def test_what_does_not_exist_leaves_no_directory(checkpoint, tmp_path):
    out = tmp_path / "runs"
    for wrong in ({"quantization": "3bit"}, {"adapter": str(tmp_path / "none")}):
        with pytest.raises(InvalidInput):
            evaluate(ask(checkpoint, **wrong), seewhen.method("regular"), out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--device", "cpu", "--device-map", "auto"), "exclude each other"),
        (("--dtype", "float31"), "no dtype 'float31'"),
        (("--quantization", "3bit"), "no quantization '3bit'"),
        (("--scenes", "0"), "scenes=0 asks for nothing"),
        (("--limit", "0"), "limit=0 asks for nothing"),
        (("--seeds", "0"), "seeds=0 asks for nothing"),
        (("--max-new-tokens", "0"), "max_new_tokens=0 asks for nothing"),
    ],
)
def test_the_command_refuses_in_one_line(checkpoint, tmp_path, monkeypatch, capsys, options, said):
    monkeypatch.chdir(tmp_path)
    command = ["seewhen", "eval", "pope", "--model", str(checkpoint), "--scenes", "1", *options]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr().err
    assert stopped.value.code == 2 and said in told and told.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_attention_kernel_is_told_briefly(checkpoint):
    with pytest.raises(InvalidInput, match="no such attention kernel") as refused:
        load_model(checkpoint, device="cpu", attn_implementation="bogus")
    assert "sdpa" in str(refused.value) and len(str(refused.value)) < 300


def test_the_models_that_come_along_load_without_a_bar_and_others_with(checkpoint, capfd, monkeypatch):
    from transformers.utils import logging

    before = logging.is_progress_bar_enabled()
    logging.enable_progress_bar()
    try:
        load_model("packaged", device="cpu")
        assert capfd.readouterr().err == ""
        assert logging.is_progress_bar_enabled()
        load_model(checkpoint, device="cpu")
        assert "Loading weights" in capfd.readouterr().err
        monkeypatch.setattr("seewhen.backbones.loading.resolve", lambda name: str(checkpoint))
        load_model("photo", device="cpu")
        assert capfd.readouterr().err == ""
    finally:
        (logging.enable_progress_bar if before else logging.disable_progress_bar)()
