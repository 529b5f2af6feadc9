"""SID: parity with the released code, and what its second row may see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText

import seewhen
import tiny
from goldens import golden, golden_model, golden_replay, matches
from promises import (
    STEPS,
    branch_logits,
    close,
    some_tokens,
)
from seewhen.errors import InvalidMethod, UnsupportedModel
from seewhen.methods.sid import SID, _without

families = pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl", "internvl"])


def test_scores_and_kept_tokens_match_the_released_code() -> None:
    stored = golden("sid")
    replay, given = golden_replay(SID(keep=6))
    matches(replay.scores, stored["scores"])
    close(replay.logits, given["base_logits"], 2e-4)
    start = int(stored["img_start"])
    for step, columns in enumerate(stored["kept_columns"].tolist()):
        kept = replay.trace.tensors["kept"][step, 0].nonzero().flatten() + start
        assert kept.tolist() == columns


def test_the_second_row_matches_the_released_code_with_every_kernel() -> None:
    stored, given = golden("sid"), golden("inputs")
    prompt = {name: given[name] for name in ("input_ids", "pixel_values")}
    tokens = given["continuation"][:, : len(stored["scores"])]
    eager = AutoModelForImageTextToText.from_config(golden_model().config, attn_implementation="eager").eval()
    eager.load_state_dict(golden_model().state_dict())
    for model in (golden_model(), eager):
        matches(branch_logits(model, prompt, tokens, SID(keep=6))[0], stored["contrast_logits"])


def test_reference_parity_drops_the_cut() -> None:
    model, inputs, tokens = tiny.model("llava"), tiny.inputs("llava"), some_tokens(1)
    cut = seewhen.replay(model, inputs, tokens, SID()).scores
    whole = seewhen.replay(model, inputs, tokens, SID(reference_parity=True)).scores
    assert torch.isneginf(cut).any() and torch.isfinite(whole).all()
    kept = torch.isfinite(cut)
    assert torch.equal(cut[kept], whole[kept])


@families
def test_keeping_all_tokens_is_the_main_row(family: str) -> None:
    model, inputs = tiny.model(family), tiny.inputs(family, rows=2)
    replay = seewhen.replay(model, inputs, some_tokens(2), SID(keep=1000, plausibility=None))
    close(replay.scores, replay.logits, 2e-4)


def test_the_number_kept_is_a_share_of_each_rows_own_tokens() -> None:
    model, inputs = tiny.model("internvl"), tiny.inputs("internvl", rows=3)
    replay = seewhen.replay(model, inputs, some_tokens(3), SID(keep=0.25))
    counts = (inputs["input_ids"] == tiny.IMAGE).sum(1)
    assert len(set(counts.tolist())) > 1
    for step in range(STEPS + 1):
        assert replay.trace.tensors["kept"][step].sum(1).tolist() == (counts * 0.25).round().tolist()


def test_the_main_row_is_not_touched() -> None:
    model, inputs, tokens = tiny.model("llava"), tiny.inputs("llava", rows=2), some_tokens(2)
    ours = seewhen.replay(model, inputs, tokens, SID(keep=1)).logits
    close(ours, seewhen.replay(model, inputs, tokens, "regular").logits)


def test_a_query_left_with_nothing_sees_itself() -> None:
    blocked = torch.tensor([[False, False, False], [True, True, False]])[:, None, None]
    causal = torch.ones(3, 3).tril().bool()
    expected = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1]]).bool()
    for mask in (None, causal.expand(2, 1, -1, -1)):
        left = _without(mask, blocked, (3, 3))
        assert torch.equal(left[0, 0], causal) and torch.equal(left[1, 0], expected)
    smallest = torch.finfo(torch.float32).min
    added = torch.zeros(2, 1, 3, 3).masked_fill(~causal, smallest)
    left = _without(added, blocked, (3, 3))
    assert torch.equal(left[1, 0] == 0, expected) and left.min() == smallest


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_hybrids_are_refused(family: str) -> None:
    with (
        pytest.raises(UnsupportedModel, match=r"layers \[2\].*linear or sliding"),
        seewhen.attach(tiny.model(family), SID()),
    ):
        pass


@pytest.mark.parametrize("wrong", [{"layer": 0}, {"keep": 0}, {"keep": 1.5}, {"alpha": -1.0}])
def test_parameters_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMethod, match="sid"):
        SID(**wrong)


def test_a_layer_the_model_does_not_have() -> None:
    with pytest.raises(InvalidMethod, match="4 layers"), seewhen.attach(tiny.model("llava"), SID(layer=4)):
        pass
