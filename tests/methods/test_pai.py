"""PAI: parity with the released code, and its two parts alone."""

from __future__ import annotations

import pytest
import torch

import seewhen
import tiny
from goldens import golden, golden_replay, matches
from promises import check_acts, check_batch, check_beams, check_compiled, check_off, check_static_cache, close
from seewhen.errors import InvalidMethod
from seewhen.methods.pai import PAI

families = pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "qwen3_vl", "internvl"])
UNCUT = PAI(plausibility=None)


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


@families
def test_strength_zero_is_stock(family: str) -> None:
    check_off(family, PAI(alpha=0.0, gamma=1.0))


def test_contrast_alone_leaves_the_main_row_alone() -> None:
    replay, given = golden_replay(PAI(alpha=0.0, gamma=2.0, plausibility=None))
    close(replay.logits, given["base_logits"], 2e-5)
    other = golden("pai_cfg_released")["uncond_logits"]
    main, text = (torch.log_softmax(z[: len(other)], dim=-1) for z in (given["base_logits"], other))
    matches(replay.scores, 2.0 * main - text)


@families
def test_every_mode(family: str) -> None:
    check_acts(family, UNCUT)
    check_batch(family, PAI())
    check_static_cache(family, PAI())


@families
def test_beams(family: str) -> None:
    check_beams(family, PAI())


def test_compiles() -> None:
    check_compiled("llava", PAI())


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


def test_presets_can_be_made_and_travel_through_json() -> None:
    for preset in PAI.presets:
        made = seewhen.method("pai", preset=preset)
        assert seewhen.method_from_json(made.to_json()) == made
