"""M3ID: the growing weight, the gate, and the text-only row."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import seewhen
import tiny
from goldens import golden, golden_replay
from promises import (
    STEPS,
    branch_logits,
    close,
    some_tokens,
)
from seewhen.errors import InvalidMethod
from seewhen.methods.m3id import M3ID

OPEN = M3ID(t0=10.0, gate_alpha=None)


@pytest.mark.parametrize(
    ("token", "weight"), [(0, 0.0), (1, 0.020), (8, 0.174), (64, 2.6), (128, 11.9), (512, 2.8e4)]
)
def test_weight(token: int, weight: float) -> None:
    assert float(M3ID().weight(torch.tensor(token))) == pytest.approx(weight, rel=0.02, abs=1e-9)


@given(
    token=st.integers(0, 300),
    t0=st.floats(0, 30),
    k=st.floats(1e-4, 0.05),
    alpha=st.floats(0.05, 1.0),
    seed=st.integers(0, 99),
)
@settings(max_examples=40)
def test_rule_is_the_papers_formula(token: int, t0: float, k: float, alpha: float, seed: int) -> None:
    main, other = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(seed)) * 3
    scores = rule(M3ID(k=k, t0=t0, gate_alpha=alpha), main, other, token)
    lc, lu = torch.log_softmax(main, -1).double(), torch.log_softmax(other, -1).double()
    g = math.exp(-k * (token + t0))
    for row in range(3):
        unsure = lc[row].max() < math.log(alpha)
        expected = lc[row] + ((1 - g) / g * (lc[row] - lu[row]) if unsure else 0.0)
        torch.testing.assert_close(scores[row].double(), expected, rtol=1e-4, atol=1e-4)


def rule(method: M3ID, main: Tensor, other: Tensor, token: int) -> Tensor:
    class Recorder:
        number = torch.tensor([token])

    class Sequence:
        recorder = Recorder()

    class Logits:
        branches = (other,)
        sequence = Sequence()

    Logits.main = main  # type: ignore[attr-defined]
    return method._rule(Logits())  # type: ignore[arg-type]


def test_scores_over_a_replay() -> None:
    """The step is counted from the first generated token; the text-only row is that of the released PAI code."""
    replay, given_inputs = golden_replay(OPEN)
    text = golden("pai_cfg_released")["uncond_logits"]
    lc, lu = (torch.log_softmax(z[: len(text)], dim=-1) for z in (given_inputs["base_logits"], text))
    weight = torch.exp(0.02 * (torch.arange(len(text)) + 10.0))[:, None] - 1.0
    close(replay.scores[: len(text)], lc + weight * (lc - lu), 2e-4)


def test_the_baseline_never_changes_the_first_token() -> None:
    """Its weight is zero there, which is why it cannot act on yes/no questions."""
    model, inputs, tokens = tiny.model("llava"), tiny.inputs("llava"), some_tokens(1)
    baseline = M3ID(gate_alpha=None, apc_beta=None)
    replay = seewhen.replay(model, inputs, tokens, baseline)
    gap = torch.log_softmax(replay.scores, -1) - torch.log_softmax(replay.logits, -1)
    assert gap[0].abs().max() < 1e-5
    assert gap[3].abs().max() > 1e-3


def test_a_sure_row_is_left_alone_and_an_unsure_one_is_not() -> None:
    model, inputs, tokens = tiny.model("llava"), tiny.inputs("llava"), some_tokens(1)
    replay = seewhen.replay(model, inputs, tokens, OPEN)
    sure = torch.softmax(replay.logits, -1).amax(-1)
    threshold = float(sure.sort().values[[1, 2]].mean())
    gated = seewhen.replay(model, inputs, tokens, OPEN.replace(gate_alpha=threshold))
    plain = torch.log_softmax(replay.logits, -1)
    for step in range(STEPS + 1):
        close(gated.scores[step], replay.scores[step] if sure[step] < threshold else plain[step], 1e-5)


def test_the_text_only_row_has_its_own_cache() -> None:
    model, inputs, tokens = tiny.model("llava"), tiny.inputs("llava"), some_tokens(1)
    ids = inputs["input_ids"][inputs["input_ids"] != tiny.IMAGE][None]
    ours = branch_logits(model, inputs, tokens, OPEN)
    for step in range(STEPS):
        whole = torch.cat([ids, tokens[:, :step]], dim=1)
        close(ours[0, step], model(input_ids=whole).logits[0, -1])


@pytest.mark.parametrize("wrong", [{"k": -0.1}, {"t0": -1.0}, {"gate_alpha": 0.0}, {"apc_beta": 2.0}])
def test_parameters_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidMethod, match="m3id"):
        M3ID(**wrong)
