"""The folder for the Hub: `model.generate(custom_generate=FOLDER)` is the same as attaching."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import seewhen
import tiny

FOLDER = Path(__file__).resolve().parents[2] / "hub"


@pytest.mark.parametrize("method", ["cai:start_layer=1,threshold=-1", "vcd", "regular"])
@pytest.mark.slow
def test_the_second_door_leads_to_the_same_answers(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": tiny.PAD}
    door = {"custom_generate": str(FOLDER), "trust_remote_code": True}
    found = model.generate(**inputs, **options, **door, method=method, print_summary=True)
    with seewhen.attach(model, method) as handle:
        expected = model.generate(**inputs, **options)
    assert torch.equal(found, expected)
    assert capsys.readouterr().out.strip() == handle.summary()
    assert "generate" not in model.__dict__
