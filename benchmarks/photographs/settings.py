"""What is tried on validation photographs: a few settings of every method to choose from, and CAI's ablations.

Every method that is tuned gets four settings, its default first, so that none is favoured by a longer search.
Written before any photograph was answered; OPERA and SGRS (`saliency`) run with their defaults: one is a beam
search, one samples only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Setting = Mapping[str, Any]

TRIED: Mapping[str, tuple[Setting, ...]] = {
    "cai": ({"contrast": 3.0}, {"contrast": 1.1}, {"contrast": 1.5}, {"contrast": 5.0}),
    "pai": ({}, {"alpha": 0.2}, {"alpha": 0.2, "gamma": 2.0}, {"alpha": 0.8}),
    "vcd": ({}, {"alpha": 0.25}, {"alpha": 0.5}, {"alpha": 2.0}),
    "m3id": ({}, {"k": 0.005}, {"k": 0.05}, {"gate_alpha": None, "apc_beta": 0.1}),
    "icd": ({}, {"alpha": 0.25}, {"alpha": 1.0}, {"alpha": 2.0}),
    "sid": ({}, {"alpha": 0.25}, {"alpha": 1.0}, {"keep": 0.5}),
    "only": ({}, {"collaboration": 1.0}, {"collaboration": 1.0, "contrast": 0.5}, {"agreement": 0.6}),
    "dola": ({}, {"layers": "high"}, {"relative_top": 0.3}, {"layers": "high", "relative_top": 0.3}),
    "farsight": ({}, {"sigma": 0.4}, {"sigma": 1.6}, {"registers": "infinite"}),
    "memvr": ({}, {"ratio": 0.28}, {"threshold": 0.5}, {"ratio": 0.28, "threshold": 0.5}),
    "locore": ({}, {"beta": 0.05}, {"beta": 0.3}, {"beta": 0.6}),
    "agla": ({}, {"alpha": 0.5}, {"alpha": 1.0}, {"alpha": 4.0}),
    "vti": (
        {}, {"image_strength": 0.2, "text_strength": 0.2}, {"image_strength": 0.4, "text_strength": 0.4},
        {"image_strength": 0.0, "text_strength": 0.8},
    ),
    "ict": (
        {}, {"image_strength": 1.0, "object_strength": 1.0}, {"image_strength": 2.0, "object_strength": 2.0},
        {"image_strength": 4.0, "object_strength": 4.0},
    ),
}  # fmt: skip

_PRINTED = {"relevance": "sigmoid", "scale": 1.0, "floor": None}

# Factor by factor, everything else as in the class's defaults: where, when and how.
_WHERE_WHEN_HOW: Mapping[str, tuple[Setting, ...]] = {
    "base": ({},),
    "l_s": tuple({"start_layer": s} for s in (0.0, 0.5, 0.95)),
    "gamma": tuple({"threshold": t} for t in (0.0, 0.5, 1.0, 2.0)),
    "relevance": (
        {"relevance": "uniform", "floor": None}, {"floor": 0.0}, {**_PRINTED, "query": "last"},
        {"source_layer": 15},
    ),
    "tilt": ({"tilt": "exponential"}, {"tilt": "exponential", "kl_budget": 0.5}),
    "strength": ({"strength": 2.0}, {"strength": 4.0}),
}  # fmt: skip


def ablations() -> list[tuple[str, Setting]]:
    """Factor and setting of CAI; where, when and how for the tilt alone (lambda 1)."""
    found: list[tuple[str, Setting]] = []
    for factor, settings in _WHERE_WHEN_HOW.items():
        found += [(factor, {"contrast": 1.0, **setting}) for setting in settings]
    found += [("lambda", {"contrast": value}) for value in (3.0, 1.1, 1.5, 10.0)]
    found += [("cut", {"contrast": 3.0, "plausibility": cut}) for cut in (0.9, 0.5, 0.01)]
    return found
