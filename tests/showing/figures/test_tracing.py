"""Cases made with the packaged model: they say what `generate` says, and a run's captions come back whole."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

import seewhen
from seewhen.cli import app
from seewhen.equations.where import shifted_relevance
from seewhen.errors import InvalidInput
from seewhen.runs.evaluate import Ask, evaluate
from seewhen.scenes import dataset, render
from seewhen.showing.figures.tracing import DESCRIBE, Tracer, replayed, trace_run, trace_scenes

COUNT = 3


@pytest.fixture(scope="module")
def tracer():
    return Tracer.of(seewhen.load(device="cpu"), head_layers=(9, 11), batch=2)


@pytest.fixture(scope="module")
def method():
    return seewhen.method("cai", start_layer=8)


@pytest.fixture(scope="module")
def told(tracer, method):
    return trace_scenes(tracer, dataset("shifted", COUNT), method)


def test_scenes_are_answered_as_generate_answers(tracer, method, told):
    scene = dataset("shifted", COUNT)[1]
    alone = seewhen.generate(
        tracer.asker.model, tracer.asker.processor, render(scene), DESCRIBE, method, trace=True, max_new_tokens=96
    )
    case = told[1]
    assert case.text == alone.text and case.name == scene.image and case.truth == scene.names
    assert torch.equal(case.tensor("gate"), alone.trace.gate[:, 0])
    assert torch.allclose(case.tensor("entropy"), alone.trace.entropy[:, 0], atol=1e-3)
    # Greedy decoding takes the first of the five; its probability is the one that is kept.
    first = alone.trace.top_log_probs[: case.length, 0, 0]
    assert torch.allclose(case.tensor("chosen_log_probs"), first, atol=1e-3)
    assert "scores" not in case.trace.tensors


def test_heads_and_cosines_belong_to_what_the_trace_keeps_anyway(told):
    case = told[0]
    for when in ("before", "after"):
        for layer in (9, 11):
            heads = case.tensor(f"heads_{when}_at_{layer}")
            assert heads.shape[1] > 1
            assert torch.allclose(heads.mean(dim=1), case.tensor(f"attention_{when}")[:, layer], atol=1e-6)
    tilted = case.tensor("gate")[:, 9]
    changed = (case.tensor("heads_before_at_9") != case.tensor("heads_after_at_9")).flatten(1).any(dim=1)
    assert torch.equal(changed, tilted)
    cosine = case.tensor("cosine_at_0")
    assert float(cosine.abs().max()) <= 1.0 + 1e-6
    weights = shifted_relevance(cosine, torch.ones_like(cosine, dtype=torch.bool))
    assert torch.allclose(weights, case.tensor("relevance"), atol=1e-6)


def test_replaying_an_answer_gives_its_trace_again(tracer, method, told):
    again = replayed(tracer, told[2], method)
    assert again.text == told[2].text and again.length == told[2].length
    assert torch.equal(again.tensor("gate"), told[2].tensor("gate"))
    assert torch.allclose(again.tensor("entropy"), told[2].tensor("entropy"), atol=1e-3)
    regular = replayed(tracer, told[2], "regular")
    below = torch.allclose(regular.tensor("entropy")[:, :9], told[2].tensor("entropy")[:, :9], atol=1e-3)
    assert below and "gate" not in regular.trace.tensors


def test_sampling_repeats_in_any_batch(tracer):
    scenes = dataset("shifted", COUNT)
    together = trace_scenes(tracer, scenes, "regular", seed=3, max_new_tokens=8)
    alone = trace_scenes(tracer, scenes[2:], "regular", seed=3, max_new_tokens=8)
    assert together[2].text == alone[0].text


@pytest.mark.slow
def test_a_runs_captions_come_back_with_their_traces(tracer, method, told, tmp_path):
    ask = Ask("chair", split="shifted", scenes=COUNT, batch=2, max_new_tokens=96)
    path, _ = evaluate(ask, method, tmp_path)
    cases = trace_run(tracer, path)
    assert [case.text for case in cases] == [case.text for case in told]
    for case, direct in zip(cases, told, strict=True):
        ids = [each.trace.tokens[: each.length, each.row].tolist() for each in (case, direct)]
        assert ids[0] == ids[1] and case.boxes == direct.boxes
        assert torch.equal(case.tensor("gate"), direct.tensor("gate"))
    out = tmp_path / "fired.svg"
    result = CliRunner().invoke(app, ["figure", "fired", "--run", str(path), "--limit", "2", "--out", str(out)])
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "fired.json").read_text())
    assert data["answers"] == 2 and data["tokens"] == told[0].length + told[1].length


def test_runs_of_questions_are_refused(tracer, tmp_path):
    benchmark = {"name": "pope", "data": "scenes", "split": None, "settings": {}}
    benchmark |= {"questions": "", "style": "plain"}
    config = {
        "benchmark": benchmark,
        "model": {"name": "packaged", "dtype": "float32"},
        "method": {"label": "regular", "fingerprint": "", "method": "regular", "parameters": {}},
        "decoding": {"mode": "greedy", "max_new_tokens": 8},
        "versions": {},
    }
    manifest = {"format": 1, "config": config, "environment": {}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(InvalidInput, match="not captions"):
        trace_run(tracer, tmp_path)
    for name, how in (("opera", "searches over beams"), ("saliency", "rejects samples")):
        with pytest.raises(InvalidInput, match=f"{name} {how}, so given words"):
            trace_scenes(tracer, dataset("test", 1), name)
