"""PAI: parity with the released code, and its two parts alone."""

from __future__ import annotations

import pytest
import torch

import seewhen
import tiny
from goldens import golden, golden_replay, matches
from promises import close
from seewhen.errors import InvalidMethod
from seewhen.methods.pai import PAI


def test_attention_alone_matches_the_released_code() -> None:
    replay, _ = golden_replay(PAI(alpha=0.5, gamma=1.0))
    matches(replay.logits, golden("pai_attn")["logits"])
    matches(replay.scores, golden("pai_attn")["logits"])


def test_with_contrast_as_released_the_first_token_is_not_edited() -> None:
    stored = golden("pai_cfg_released")
    replay, given = golden_replay(PAI(alpha=0.5, gamma=1.1, reference_parity=True))
    matches(replay.logits, stored["logits"])
    matches(replay.scores, stored["scores"])
    close(replay.logits[0], given["base_logits"][0], 2e-4)
    assert not replay.gates[0].any()
    assert replay.gates[1:, 2:].all()


def test_with_contrast_repaired_matches_the_released_code_with_its_flag_cleared() -> None:
    replay, _ = golden_replay(PAI(alpha=0.5, gamma=1.1))
    matches(replay.scores, golden("pai_cfg_prefill")["scores"])
    matches(replay.logits, golden("pai_attn")["logits"])
    assert replay.gates[:, 2:].all()


def test_reference_parity_changes_nothing_without_the_contrast() -> None:
    model, inputs = tiny.model("llava"), tiny.inputs("llava")
    runs = [
        seewhen.replay(model, inputs, [5, 6, 7], PAI(gamma=1.0, reference_parity=parity)).logits
        for parity in (False, True)
    ]
    assert torch.equal(*runs)


def test_contrast_alone_leaves_the_main_row_alone() -> None:
    replay, given = golden_replay(PAI(alpha=0.0, gamma=2.0, plausibility=None))
    close(replay.logits, given["base_logits"], 2e-5)
    other = golden("pai_cfg_released")["uncond_logits"]
    main, text = (torch.log_softmax(z[: len(other)], dim=-1) for z in (given["base_logits"], other))
    matches(replay.scores, 2.0 * main - text)


def test_only_softmax_layers_of_a_hybrid_are_edited() -> None:
    replay = seewhen.replay(tiny.model("qwen3_5"), tiny.inputs("qwen3_5"), [5, 6], PAI())
    assert replay.gates.any(0).tolist() == [False, False, False, True]
    with pytest.raises(InvalidMethod, match="no softmax attention"):
        seewhen.replay(tiny.model("qwen3_5"), tiny.inputs("qwen3_5"), [5], PAI(start_layer=2, end_layer=3))


@pytest.mark.parametrize(
    "wrong", [{"alpha": -0.1}, {"gamma": 0.9}, {"start_layer": 3, "end_layer": 3}, {"plausibility": 1.5}]
)
def test_parameters_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidMethod, match="pai"):
        PAI(**wrong)  # type: ignore[arg-type]
