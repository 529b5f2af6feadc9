"""Preset `reference` reproduces what the authors' released code computed."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import seewhen

TOLERANCE = 2e-4


def test_unmodified_model(golden_llava):
    model, inputs, tokens, tensors = golden_llava
    result = seewhen.replay(model, inputs, tokens, "regular")
    torch.testing.assert_close(result.logits, tensors["base_logits"], atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(result.scores, result.logits, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["cai_on", "cai_off", "cai_gated", "cai_contrast"])
def test_cai(golden, golden_llava, name):
    model, inputs, tokens, _ = golden_llava
    expected = load_file(golden / "llava" / f"{name}.safetensors")
    method = seewhen.method(
        "cai",
        preset="reference",
        start_layer=int(expected["start_layer"]),
        threshold=float(expected["threshold"]),
        contrast=float(expected.get("contrast", 1.0)),
    )
    with pytest.warns(UserWarning, match="never fired") if name == "cai_off" else _no_warning():
        result = seewhen.replay(model, inputs, tokens, method)
    torch.testing.assert_close(result.logits, expected["logits"], atol=TOLERANCE, rtol=0)
    assert torch.equal(result.gates, expected["flags"].bool())
    edited = expected["weights"][:, 0] >= 0
    torch.testing.assert_close(result.relevance[edited], expected["weights"][edited], atol=TOLERANCE, rtol=0)
    if "contrast_scores" in expected:
        # All rows, the last two included, in which the released code tilts its text-only row.
        torch.testing.assert_close(result.scores, expected["contrast_scores"], atol=TOLERANCE, rtol=0)


def test_without_the_leak_only_the_grown_rows_differ(golden, golden_llava):
    model, inputs, tokens, _ = golden_llava
    expected = load_file(golden / "llava" / "cai_contrast.safetensors")["contrast_scores"]
    method = seewhen.method("cai", preset="reference", start_layer=3, threshold=1.35, contrast=3.0, leak=False)
    scores = seewhen.replay(model, inputs, tokens, method).scores
    # The text-only row (9 prompt tokens) outgrows the end of the image span (19) at row 11.
    torch.testing.assert_close(scores[:11], expected[:11], atol=TOLERANCE, rtol=0)
    finite = torch.isfinite(expected[11:])
    assert (scores[11:][finite] - expected[11:][finite]).abs().max() > 0.1


@pytest.mark.parametrize("kernel", ["eager", "sdpa"])
def test_any_stock_kernel_hosts_the_tilt(golden, golden_llava, kernel):
    model, inputs, tokens, _ = golden_llava
    expected = load_file(golden / "llava" / "cai_on.safetensors")
    method = seewhen.method("cai", preset="reference", start_layer=2, threshold=-1.0)
    before = model.config._attn_implementation
    model.set_attn_implementation(kernel)
    try:
        result = seewhen.replay(model, inputs, tokens, method)
    finally:
        model.set_attn_implementation(before)
    torch.testing.assert_close(result.logits, expected["logits"], atol=TOLERANCE, rtol=0)


class _no_warning:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass
