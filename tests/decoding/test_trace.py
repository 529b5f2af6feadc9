"""The trace: what it holds, what it says, and its trip through a file."""

from __future__ import annotations

import pytest
import torch

import seewhen
import tiny
from seewhen.backbones.backbone import Backbone
from seewhen.equations.when import entropy
from seewhen.errors import InvalidInput


@pytest.fixture(scope="module")
def trace():
    model, inputs = tiny.model("llava"), tiny.inputs("llava", rows=2, text_lengths=(4, 6))
    method = seewhen.method("cai", start_layer=1)
    with seewhen.attach(model, method, trace=True, relevance_layers=(0, 2)) as handle:
        model.generate(**inputs, max_new_tokens=6, do_sample=False)
    return handle.trace


def test_gates_follow_from_entropy_and_threshold(trace):
    layers = list(trace.tilted_layers)
    assert layers == [2, 3]
    decided = trace.entropy[:, :, [la - 1 for la in layers]] > trace.threshold[:, :, layers]
    assert torch.equal(decided, trace.gate[:, :, layers])
    assert not trace.gate[:, :, :2].any()
    # the adaptive threshold: the fixed start, then mean + 0.5 sd of the tokens before
    first, third = trace.threshold[0, 0, 2], trace.threshold[2, 0, 2]
    past = trace.entropy[:2, 0, 1]
    assert first == pytest.approx(0.2302585)
    assert third == pytest.approx(float(past.mean() + 0.5 * past.std(unbiased=False)), abs=1e-5)


@pytest.mark.parametrize("name", ["regular", "cai"])
@pytest.mark.parametrize(("together", "waiting"), [(1, 1), (3, 1), (64, 11), (64, 4096)])
def test_an_entropy_is_that_of_its_layers_output(name, together, waiting, monkeypatch):
    """However many states go through the head together, whenever they do, and whoever reads them."""
    monkeypatch.setattr("seewhen.decoding.observer._LENS_ROWS", together)
    monkeypatch.setattr("seewhen.decoding.observer._WAITING", waiting)
    model, inputs = tiny.model("llava"), tiny.inputs("llava", rows=2, text_lengths=(4, 6))
    backbone, seen = Backbone.of(model), []
    with seewhen.attach(model, name, trace=True) as handle:
        hooks = [
            layer.register_forward_hook(lambda module, args, output: seen.append(output[:, -1]))
            for layer in backbone.layers
        ]
        try:
            model.generate(**inputs, max_new_tokens=4, do_sample=False)
        finally:
            for hook in hooks:
                hook.remove()
    base = handle.trace.entropy_base
    ours = torch.stack([entropy(backbone.lens(state), base) for state in seen])
    expected = ours.view(len(handle.trace.tokens), len(backbone.layers), 2).transpose(1, 2)
    torch.testing.assert_close(handle.trace.entropy, expected, atol=1e-5, rtol=1e-5)


def test_a_full_trace_is_complete(trace):
    assert torch.isfinite(trace.entropy).all()
    for name in ("mass_before", "mass_after", "attention_before", "attention_after", "relevance"):
        assert torch.isfinite(trace.tensors[name]).all(), name
    moved = (trace.mass_after - trace.mass_before).abs() > 1e-7
    assert torch.equal(moved, trace.gate)
    torch.testing.assert_close(trace.attention_before.sum(-1), trace.mass_before)
    assert torch.equal(trace.relevance_at_0, trace.relevance)
    assert not torch.allclose(trace.relevance_at_2, trace.relevance)
    # greedy decoding chose the first of the runner-up list
    assert torch.equal(trace.top_ids[..., 0], trace.tokens)
    assert trace.grids[0][0].height * trace.grids[0][0].width == trace.image_tokens[0]


def test_summary_counts_what_fired(trace):
    text = trace.summary()
    hit = sum(trace.fired_tokens())
    assert f"tilted {hit} of {sum(trace.lengths)} tokens" in text and "layers 2-3 of 4" in text
    assert int(trace.fired().sum()) == sum(int(trace.row(r)["gate"].sum()) for r in range(trace.rows))


def test_save_and_load(trace, tmp_path):
    path = trace.save(tmp_path / "deep" / "trace")
    again = seewhen.Trace.load(path)
    assert sorted(p.name for p in path.parent.iterdir()) == ["trace.json", "trace.safetensors"]
    for name, value in trace.whole().__dict__.items():
        if name == "tensors":
            assert value.keys() == again.tensors.keys()
            for key in value:
                torch.testing.assert_close(again.tensors[key], value[key], equal_nan=True, atol=0, rtol=0)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, getattr(again, name))
        else:
            assert getattr(again, name) == value, name
    assert seewhen.method_from_json(again.method) == seewhen.method("cai", start_layer=1)


def test_load_errors(tmp_path):
    with pytest.raises(InvalidInput, match="no file"):
        seewhen.Trace.load(tmp_path / "nothing")
    (tmp_path / "bad.json").write_text("{not json")
    (tmp_path / "bad.safetensors").write_bytes(b"")
    with pytest.raises(InvalidInput, match="not JSON"):
        seewhen.Trace.load(tmp_path / "bad")


def test_lengths_stop_at_the_end_token():
    model, inputs = tiny.model("llava"), tiny.inputs("llava", rows=2, text_lengths=(4, 6))
    free = model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=None)
    eos = int(free[0, inputs["input_ids"].shape[1] + 1])  # the first row's second token ends it
    method = seewhen.method("cai", threshold=1e9)
    with seewhen.attach(model, method) as handle, pytest.warns(UserWarning, match="never fired"):
        model.generate(**inputs, max_new_tokens=6, do_sample=False, eos_token_id=eos)
    assert handle.trace.lengths[0] == 2


def test_missing_tensors_say_how_to_get_them():
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    with seewhen.attach(model, seewhen.method("cai", start_layer=0, threshold=-1.0)) as handle:
        model.generate(**inputs, max_new_tokens=2, do_sample=False)
    assert handle.trace.level == "summary" and handle.trace.gate.any()
    with pytest.raises(AttributeError, match="trace=True"):
        _ = handle.trace.relevance


@pytest.mark.parametrize("source", [0, 1])
def test_relevance_from_a_deeper_source_layer(source):
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    method = seewhen.method("cai", source_layer=source, start_layer=1, threshold=-1.0)
    replayed = seewhen.replay(model, inputs, [5, 6], method, relevance_layers=(source,))
    assert torch.equal(replayed.relevance, replayed.trace.tensors[f"relevance_at_{source}"][:, 0])
