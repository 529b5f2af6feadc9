"""DoLa: the original code's numbers, the two divergences, and all decoding modes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

import seewhen
import tiny
from goldens import golden, golden_replay, matches
from promises import (
    close,
    some_tokens,
)
from seewhen.backbones.wide import lay_wide
from seewhen.errors import InvalidMethod
from seewhen.methods.dola import candidate_layers, jensen_shannon, mixture_divergence


@pytest.mark.parametrize("layers", ["low", "high"])
def test_golden(layers: str) -> None:
    stored = golden("dola")
    run = golden_replay(seewhen.method("dola", preset=layers), 7)[0]
    assert run.trace.early_layer[:, 0].tolist() == stored[f"{layers}_layers"].tolist()
    matches(run.trace.divergence[:, 0], stored[f"{layers}_divergence"], 1e-6)
    if layers == "low":
        matches(run.scores, stored["low_scores"])


def test_divergences_of_the_specification() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]).log(), torch.tensor([0.2, 0.3, 0.5]).log()
    assert mixture_divergence(p, q).item() == pytest.approx(0.058773, abs=1e-6)
    assert jensen_shannon(p, q).item() == pytest.approx(0.151358, abs=1e-6)


@pytest.mark.parametrize(
    ("layers", "depth", "tied", "expected"),
    [
        ("low", 32, False, tuple(range(0, 16, 2))),
        ("low", 32, True, tuple(range(2, 16, 2))),
        ("high", 32, False, tuple(range(16, 32, 2))),
        ("low", 60, False, tuple(range(0, 20, 2))),
        ("high", 60, True, tuple(range(40, 60, 2))),
        ("low", 4, True, (2,)),
        ((3, 1), 4, False, (3, 1)),
    ],
)
def test_candidates(layers: object, depth: int, tied: bool, expected: tuple[int, ...]) -> None:
    assert candidate_layers(layers, depth, tied) == expected  # type: ignore[arg-type]


def test_tied_embeddings_are_noticed() -> None:
    untied, method = tiny.model("qwen2_5_vl"), seewhen.method("dola")
    assert method.candidates(seewhen.Backbone.of(untied)) == (0,)
    embedding = untied.get_input_embeddings().weight
    head = untied.get_output_embeddings()
    own = head.weight
    head.weight = embedding
    try:
        assert method.candidates(seewhen.Backbone.of(untied)) == (2,)
    finally:
        head.weight = own


@pytest.mark.parametrize("moved", ["laid by columns", "offloaded"])
def test_embeddings_that_were_tied_are_noticed_where_they_went(moved: str, tmp_path: Path) -> None:
    """The commands lay a small model's head by columns, and accelerate loads it by itself: two tensors then."""
    torch.manual_seed(0)
    text = {"model_type": "llama", "tie_word_embeddings": True}
    tiny.model("llava", **text).save_pretrained(tmp_path)
    model = AutoModelForImageTextToText.from_pretrained(tmp_path)
    if moved == "offloaded":
        accelerate = pytest.importorskip("accelerate", reason="offloading is accelerate's")
        accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        lay_wide(model)
    backbone = seewhen.Backbone.of(model)
    assert backbone.head.weight is not model.get_input_embeddings().weight
    assert seewhen.method("dola").candidates(backbone) == (2,)


def test_one_candidate_is_a_plain_difference() -> None:
    """Static DoLa by hand: log-probabilities minus the projected hidden state, without the final norm."""
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    run = seewhen.replay(model, inputs, some_tokens()[0], seewhen.method("dola", layers=(3,), relative_top=0))
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    early = model.lm_head(output.hidden_states[3][0, -1]).log_softmax(-1)
    close(run.scores[0], output.logits[0, -1].log_softmax(-1) - early, 1e-4)


def test_one_layer_per_batch_is_the_port() -> None:
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava", rows=3), some_tokens(rows=3)
    each = seewhen.replay(model, inputs, continuation, seewhen.method("dola", layers=(0, 1, 2, 3)))
    shared = seewhen.replay(
        model, inputs, continuation, seewhen.method("dola", layers=(0, 1, 2, 3), layer_per="batch")
    )
    assert (each.trace.early_layer != each.trace.early_layer[:, :1]).any()
    assert (shared.trace.early_layer == shared.trace.early_layer[:, :1]).all()
    expected = each.trace.divergence.mean(dim=1).argmax(dim=-1)
    assert shared.trace.early_layer[:, 0].tolist() == expected.tolist()


def test_other_divergence_can_choose_other_layers() -> None:
    model, inputs, continuation = tiny.model("llava"), tiny.inputs("llava"), some_tokens(steps=12)[0]
    code, true = (
        seewhen.replay(
            model, inputs, continuation, seewhen.method("dola", layers=(0, 1, 2, 3), reference_parity=on)
        )
        for on in (True, False)
    )
    assert not torch.equal(code.trace.divergence, true.trace.divergence)
    assert (true.trace.divergence <= 0.6932).all()  # ln 2


def test_errors() -> None:
    method = seewhen.method("dola", layers=[1, 3])
    for bad in ({"layers": "middle"}, {"layers": ()}, {"layers": (1, 1)}, {"relative_top": 2}, {"layer_per": "x"}):
        with pytest.raises(InvalidMethod):
            seewhen.method("dola", **bad)
    with (
        pytest.raises(InvalidMethod, match="4 layers"),
        seewhen.attach(tiny.model("llava"), method.replace(layers=(4,))),
    ):
        pass
