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

# CAI factor by factor, the most telling first. Where, when and how are varied for the tilt alone (contrast 1), the
# plausibility cut for the contrast of the study.
_TILT = {"contrast": 1.0}
ABLATIONS: tuple[tuple[str, Setting], ...] = (
    ("base", {**_TILT}),
    ("cut", {"contrast": 3.0, "plausibility": 0.9}),
    ("relevance", {**_TILT, "relevance": "uniform", "floor": None}),
    ("l_s", {**_TILT, "start_layer": 0.0}),
    ("gamma", {**_TILT, "threshold": 0.0}),
    ("cut", {"contrast": 3.0, "plausibility": 0.5}),
    ("tilt", {**_TILT, "tilt": "exponential"}),
    ("l_s", {**_TILT, "start_layer": 0.5}),
    ("gamma", {**_TILT, "threshold": 1.0}),
    ("strength", {**_TILT, "strength": 4.0}),
    ("relevance", {**_TILT, "floor": 0.0}),
    ("lambda", {"contrast": 3.0}),
    ("lambda", {"contrast": 1.1}),
    ("lambda", {"contrast": 1.5}),
    ("lambda", {"contrast": 10.0}),
    ("l_s", {**_TILT, "start_layer": 0.95}),
    ("gamma", {**_TILT, "threshold": 0.5}),
    ("gamma", {**_TILT, "threshold": 2.0}),
    ("strength", {**_TILT, "strength": 2.0}),
    ("relevance", {**_TILT, "relevance": "sigmoid", "scale": 1.0, "floor": None, "query": "last"}),
    ("relevance", {**_TILT, "source_layer": 15}),
    ("tilt", {**_TILT, "tilt": "exponential", "kl_budget": 0.5}),
    ("cut", {"contrast": 3.0, "plausibility": 0.01}),
)
