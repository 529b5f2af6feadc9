"""Models whose weights wait on disk or in memory (accelerate's offloading) answer as whole ones do."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import seewhen
import tiny
from promises import generate
from seewhen.errors import UnsupportedModel

accelerate = pytest.importorskip("accelerate", reason="offloading is accelerate's")
METHODS = {
    "cai": seewhen.method("cai", preset="reference", start_layer=1, threshold=-1.0),
    "cai with contrast": seewhen.method("cai", start_layer=1, contrast=2.0),
    "dola": seewhen.method("dola"),
    "memvr": seewhen.method("memvr"),
    "only": seewhen.method("only"),
    "farsight": seewhen.method("farsight"),
    "vcd": seewhen.method("vcd"),
    "pai": seewhen.method("pai"),
}


@pytest.mark.parametrize("where", ["cpu", "disk"])
@pytest.mark.parametrize("name", METHODS)
def test_an_offloaded_model_answers_as_the_whole_one(name: str, where: str, tmp_path: Path) -> None:
    inputs = tiny.inputs("llava")
    torch.manual_seed(0)
    expected = generate(tiny.model("llava"), inputs, METHODS[name])
    offloaded = copy.deepcopy(tiny.model("llava"))
    if where == "cpu":
        accelerate.cpu_offload(offloaded, execution_device=torch.device("cpu"))
    else:
        accelerate.disk_offload(offloaded, tmp_path, execution_device=torch.device("cpu"))
    assert next(offloaded.get_output_embeddings().parameters()).is_meta
    torch.manual_seed(0)
    got = generate(offloaded, inputs, METHODS[name])
    assert torch.equal(got.sequences, expected.sequences)
    for ours, theirs in zip(got.scores, expected.scores, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_what_needs_the_weights_themselves_is_refused_in_a_line() -> None:
    offloaded = accelerate.cpu_offload(copy.deepcopy(tiny.model("llava")), execution_device=torch.device("cpu"))
    with pytest.raises(UnsupportedModel, match="weights at hand"):
        generate(offloaded, tiny.inputs("llava"), seewhen.method("memvr", activation="silu"))
