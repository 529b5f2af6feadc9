"""Methods x promises, each where it is tried; and a setting of every method that runs on a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from calibrating import fitted_ict, fitted_vti

import seewhen
import tiny
from every_family import CONTRAST, NEVER
from promises import FAMILIES
from seewhen.decoding.method import Method
from wordy import WordyTokenizer

Setting = Method | Callable[[str], Method]  # some depend on the family: their directions are fitted to it
Cell = tuple[Setting, str, dict[str, Any]]

HYBRID = "qwen3_5"
EVERY_FAMILY = (*tiny.FAMILIES, tiny.CAPPED)


def at(setting: Setting, *families: str, **options: Any) -> list[Cell]:
    """A setting, tried on some families."""
    return [(setting, family, options) for family in families]


def fitted(fit: Callable[..., Method], **parameters: Any) -> Callable[[str], Method]:
    return lambda family: fit(family, **parameters)


method = seewhen.method
agla, agla_parity = method("agla", keep=0.5), method("agla", keep=0.5, reference_parity=True)
gla = method("cai-gla", start_layer=0, threshold=-1.0)
dola = method("dola", layers=[0, 1, 2])
far = method("farsight", preset="infinite", decay="released")
icd = method("icd", sentence_ids=(40, 41, 42, 43, 44, 45, 46))
m3id, m3id_gated = method("m3id", t0=10.0, gate_alpha=None), method("m3id", t0=10.0, gate_alpha=0.6, apc_beta=0.1)
# On four layers: judge layers 0 to 2, with a threshold that opens sometimes.
OPEN = {"after": 0, "before": 3, "threshold": 0.3, "ratio": 0.4}
memvr = method("memvr", **OPEN)
memvr_silu = method("memvr", **{**OPEN, "threshold": 0.01}, activation="silu", lens_norm=False)
only = method("only", agreement=0.9, plausibility=None)
pai, sid, vcd = method("pai"), method("sid"), method("vcd")
locore = method("locore", beta=0.5, window=3)
confirm = method("confirm", lexicon="coco", verdict="asking").prepare(WordyTokenizer())
weak_ict = fitted(fitted_ict, image_strength=2.0, object_strength=2.0)

# Contrasts are tried in a batch on all four families, with beams and in a static cache on two each, by turns.
MATRIX: dict[str, dict[str, list[Cell]]] = {
    "regular": {"off": at(method("regular"), "llava", HYBRID)},
    "min-p": {"batch": at(method("min-p"), "llava")},
    "cai": {  # more about every family in tests/decoding
        "off": at(NEVER, *EVERY_FAMILY, warns="never fired"),
        "batch": at(CONTRAST, *EVERY_FAMILY),
        # The adaptive threshold is a history per row, which must follow its beam.
        "beams": at(CONTRAST, *EVERY_FAMILY)
        + at(method("cai", start_layer=0, contrast=1.5), *FAMILIES, HYBRID, "gemma3", rows=1, num_beams=4),
    },
    "cai-gla": {
        "off": at(gla.replace(strength=0.0), HYBRID) + at(gla.replace(threshold=1e9), HYBRID, warns="never fired"),
        "acts": at(gla, HYBRID) + at(gla.replace(contrast=3.0), HYBRID),
        "batch": at(gla, HYBRID)
        + at(gla.replace(contrast=3.0), HYBRID)
        + at(method("cai-gla", start_layer=0), HYBRID),
        "static_cache": at(gla, HYBRID)
        + at(gla.replace(contrast=3.0), HYBRID)
        + at(method("cai-gla", start_layer=0), HYBRID),
        "beams": at(gla.replace(contrast=3.0), HYBRID),
        "compiled": at(gla.replace(contrast=3.0), HYBRID),
    },
    "pai": {
        "off": at(method("pai", alpha=0.0, gamma=1.0), *FAMILIES),
        "acts": at(method("pai", plausibility=None), *FAMILIES),
        "batch": at(pai, *FAMILIES),
        "static_cache": at(pai, "llava", "qwen3_vl"),
        "beams": at(pai, "qwen2_5_vl", "internvl"),
        "compiled": at(pai, "llava"),
    },
    "vcd": {
        "off": at(method("vcd", alpha=0.0), *FAMILIES),
        "acts": at(method("vcd", plausibility=None), *FAMILIES),
        "batch": at(vcd, *FAMILIES),
        "static_cache": at(vcd, "qwen2_5_vl", "internvl"),
        "beams": at(vcd, "llava", "qwen3_vl"),
        "compiled": at(vcd, "llava", layers=2),
    },
    "icd": {
        "off": at(method("icd", alpha=0.0), *FAMILIES),
        "acts": at(icd.replace(plausibility=None), *FAMILIES),
        "batch": at(icd, *FAMILIES),
        "static_cache": at(icd, "qwen3_vl", "internvl"),
        "beams": at(icd, "llava", "qwen2_5_vl"),
        "compiled": at(icd, "llava", layers=2),
    },
    "m3id": {
        "off": at(method("m3id", k=0.0), *FAMILIES),
        "acts": at(m3id, *FAMILIES),
        "batch": at(m3id, *FAMILIES) + at(m3id_gated, *FAMILIES),
        "static_cache": at(m3id, "llava", "qwen2_5_vl"),
        "beams": at(m3id, "qwen3_vl", "internvl") + at(m3id_gated, "llava", "qwen2_5_vl"),
        "compiled": at(method("m3id", t0=10.0), "llava", layers=2),
    },
    "sid": {
        "off": at(method("sid", alpha=0.0), *FAMILIES),
        "acts": at(method("sid", plausibility=None), *FAMILIES),
        # Where the image comes first, a hidden token may have nothing else to see; no NaN comes of it.
        "batch": at(sid, *FAMILIES)
        + at(method("sid", keep=1), "instructblip", "paligemma", "mistral3", "idefics3"),
        "static_cache": at(sid, "qwen2_5_vl", "qwen3_vl"),
        "beams": at(sid, "llava", "internvl"),
        "compiled": at(sid, "llava"),
    },
    "confirm": {"off": at(confirm.replace(on_denied="mark"), "llava", "qwen2_5_vl")},  # it only tells
    "opera": {},  # its own beam search: its file compares every choice it makes
    "vti": {
        "off": at(method("vti", image_strength=0.0, text_strength=0.0), *FAMILIES),
        "batch": at(fitted(fitted_vti), *FAMILIES),
        "without_cache": at(fitted(fitted_vti), *FAMILIES),
        "static_cache": at(fitted(fitted_vti), "llava"),
        "beams": at(fitted(fitted_vti), "llava"),
        "compiled": at(fitted(fitted_vti), "llava"),
    },
    "ict": {
        "off": at(method("ict", image_strength=0.0, object_strength=0.0), *FAMILIES),
        "acts": at(fitted(fitted_ict), *FAMILIES, HYBRID, "gemma3", "instructblip"),
        "batch": at(fitted(fitted_ict), *FAMILIES, tolerance=1e-3),
        "static_cache": at(weak_ict, "llava"),
        "beams": at(weak_ict, "llava"),
        "compiled": at(weak_ict, "llava"),
    },
    "agla": {
        "off": at(method("agla", alpha=0.0), "llava"),
        "acts": at(agla.replace(plausibility=None), *FAMILIES, "gemma3", "idefics3", "paligemma"),
        "batch": at(agla, *FAMILIES, "gemma3", "idefics3", "paligemma"),
        "static_cache": at(agla_parity, "llava"),
        "beams": at(agla, "llava"),
        "compiled": at(agla_parity, "llava", layers=2),
    },
    "only": {
        "off": at(method("only", collaboration=0.0, contrast=0.0, plausibility=None), "llava"),
        "acts": at(method("only"), *FAMILIES, "instructblip", "paligemma"),
        "batch": at(method("only"), *FAMILIES, "paligemma", tolerance=1e-3),
        "without_cache": at(method("only", layer=1), "llava", "qwen2_5_vl", HYBRID),
        "static_cache": at(only, "qwen2_5_vl"),
        "beams": at(only, "llava"),
        "compiled": at(only, "qwen2_5_vl"),
    },
    "dola": {  # no strength that is zero: its scores are a difference
        "acts": at(method("dola", relative_top=0), *FAMILIES, HYBRID, "gemma3"),
        "batch": at(method("dola"), *FAMILIES, HYBRID, "gemma3"),
        "without_cache": at(dola, "llava"),
        "static_cache": at(dola, "llava"),
        "beams": at(dola, "llava"),
        "compiled": at(dola, "llava"),
    },
    "farsight": {
        "off": at(method("farsight", sigma=2000.0), "llava")
        + at(method("farsight", sigma=2000.0, registers="infinite"), "llava")
        + at(method("farsight", reference_parity=True), "llava"),
        "acts": at(method("farsight:released"), *FAMILIES, HYBRID)
        + at(method("farsight:infinite"), *FAMILIES, HYBRID),
        "batch": at(method("farsight:released"), *FAMILIES, HYBRID)
        + at(method("farsight:infinite"), *FAMILIES, HYBRID),
        "static_cache": at(far, "llava"),
        "beams": at(far, "llava"),
        "compiled": at(far, "llava", layers=2),
    },
    "saliency": {},  # it samples: its file compares it with plain sampling
    "locore": {
        "off": at(method("locore", beta=0.0), "llava"),
        "acts": at(method("locore"), *FAMILIES, HYBRID, first=False),  # at first there are no words of its own
        "batch": at(method("locore", beta=0.5), *FAMILIES, HYBRID),
        "static_cache": at(locore, "llava"),
        "beams": at(locore, "llava"),
        "compiled": at(locore, "llava", layers=2),
    },
    "memvr": {
        "off": at(method("memvr", **{**OPEN, "ratio": 0.0}), "llava")
        + at(method("memvr", **{**OPEN, "threshold": 1.1}), "llava", warns="never fired"),
        "acts": at(memvr, *FAMILIES, HYBRID, "gemma3"),
        "batch": at(memvr, *FAMILIES, HYBRID, "gemma3") + at(memvr_silu, "llava"),
        "static_cache": at(memvr_silu, "llava"),
        "beams": at(memvr_silu, "llava"),
        "compiled": at(memvr_silu, "llava"),
    },
}


def tried(name: str) -> tuple[str, Method]:
    """A family the method runs on, and a setting of it that runs there."""
    family = HYBRID if name == "cai-gla" else "llava"
    special = {
        "icd": lambda: icd,
        "dola": lambda: dola,
        "confirm": lambda: confirm,
        "vti": lambda: fitted_vti(family),
        "ict": lambda: fitted_ict(family),
        "saliency": lambda: method("saliency", alpha=0.5, first_layer=0, last_layer=1),
        "opera": lambda: method("opera", candidates=3),
    }
    return family, special.get(name, lambda: method(name))()
