"""The bound of a head in eight bits holds, and where it decides, it decides as the exact gate does."""

from __future__ import annotations

import pytest
import torch

from seewhen.equations.when import Gate, RunningEntropy, entropy
from speed.eight_bits import FORMS, adaptive, reach

WORDS, WIDTH, STATES = 300, 64, 60


def example(seed):
    """A head, and states between very sure and very unsure."""
    chance = torch.Generator().manual_seed(seed)
    head = torch.randn((WORDS, WIDTH), generator=chance)
    states = torch.randn((STATES, WIDTH), generator=chance) * torch.linspace(0.02, 0.6, STATES)[:, None]
    return head, states


def bounded(head, states, form):
    """Logits of the copy, and how far each may be wrong."""
    near = FORMS[form](head)
    return states @ near.T, (head - near).norm(dim=1)[None] * states.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("form", FORMS)
def test_no_logit_is_further_away_and_one_is_as_far(form):
    head, states = example(0)
    near, bound = bounded(head, states, form)
    assert bool(((near - states @ head.T).abs() <= bound * (1 + 1e-4) + 1e-5).all())
    worst = (head - FORMS[form](head))[:1]  # the state along the error itself
    near, bound = bounded(head, worst, form)
    torch.testing.assert_close((near - worst @ head.T).abs()[0, 0], bound[0, 0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("threshold", [0.3, 1.0, 3.0])
def test_a_decided_token_is_decided_as_by_the_exact_gate(form, threshold):
    head, states = example(1)
    exact = entropy(states @ head.T)
    least, largest = reach(*bounded(head, states, form))
    decided = (threshold < least) | (largest <= threshold)
    assert torch.equal((least > threshold)[decided], (exact > threshold)[decided])
    assert bool(((least <= exact + 1e-4) & (exact <= largest + 1e-4)).all())
    assert decided.any() and (form != "e4m3, scale per row" or not decided.all())


def decisions(entropies, rule):
    """Which tokens of one sequence are open."""
    history, found = RunningEntropy.zeros(1, entropies.device), []
    for value in entropies:
        found.append(value > history.threshold(rule.sd_factor, rule.start)[0])
        history.update(value[None])
    return torch.stack(found)


def test_the_adaptive_rule_inherits_the_intervals():
    """Its threshold comes of entropies that are known to an interval: what is decided is right all the same."""
    head, states = example(2)
    states = states[torch.randperm(STATES, generator=torch.Generator().manual_seed(0))]
    exact = entropy(states @ head.T)
    rule = Gate(start=0.5, sd_factor=0.5)
    right = decisions(exact, rule)
    for form in FORMS:
        least, largest = reach(*bounded(head, states, form))
        looked, lost = adaptive(exact, least, largest, rule)
        found = decisions(torch.where(looked, exact, (least + largest) / 2), rule)
        assert torch.equal(found[~lost], right[~lost]), form
        assert bool((lost <= looked).all())
