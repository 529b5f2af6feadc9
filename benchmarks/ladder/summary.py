"""All that was found, as plain data: one entry for each rung, its seeds together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ladder.exam import questions
from ladder.measures import (
    COOL,
    Array,
    answered,
    believed,
    effect,
    level,
    models,
    padding,
    recoverable,
    scenes,
)
from ladder.methods import GROUPS
from ladder.rungs import kind_of
from seewhen.errors import InvalidInput
from seewhen.runs.diagnostics import Diagnostics, TiltShape, calibration_error
from seewhen.runs.ladder import scalars
from seewhen.verdicts.ceiling import Ceiling, Estimate
from seewhen.verdicts.separation import auroc

METHODS = (
    "min-p",
    COOL,
    *(n.name for group in GROUPS.values() for n in group if n.name not in ("regular", "min-p")),
)
WAYS = ("greedy", "sampled")
CUT = "min-p"  # the plausibility cut alone, which most methods carry along
CUTTING = ("contrast", "cai", "cai paper", "cai reference", "vcd", "pai", "only", "icd", "m3id", "dola")
Entry = dict[str, Any]


def diagnosed(found: Mapping[str, Any]) -> dict[str, float]:
    """The package's diagnostics, read from JSON, as numbers."""
    return scalars(Diagnostics(**{**found, "tilt": TiltShape(**found["tilt"])}))


def summary(folder: Path, replicates: int = 500) -> list[Entry]:
    """Of every rung: levels of regular decoding, effects of each method, ceilings, diagnostics."""
    by_kind: dict[str, list[str]] = {}
    for model in models(folder):
        by_kind.setdefault(kind_of(model), []).append(model)
    return [_entry(folder, kind, names, replicates) for kind, names in by_kind.items()]


def _entry(folder: Path, kind: str, names: Sequence[str], replicates: int) -> Entry:
    regular = [answered(folder, name, "regular") for name in names]
    entry: Entry = {"name": kind, "models": list(names), "weights": _weights(folder, names)}
    entry["regular"] = {way: level(sum(getattr(a, way) for a in regular if a is not None)) for way in WAYS}
    entry["effects"] = {method: found for method in METHODS if (found := _effects(folder, names, method))}
    entry["asked"] = {
        method: [n for n in names if answered(folder, n, method) is not None] for method in entry["effects"]
    }
    beyond = {method: against(folder, names, method, CUT, "sampled") for method in CUTTING}
    entry["beyond"] = {method: found for method, found in beyond.items() if found}
    entry["ceiling"] = {way: _ceiling(folder, names, way, replicates) for way in WAYS}
    entry["diagnostics"] = _diagnostics(folder, names)
    for way in WAYS:
        if entry["ceiling"][way]:
            entry["diagnostics"][f"recoverable_{way}"] = entry["ceiling"][way]["recoverable"][0]
    return entry


def _effects(folder: Path, names: Sequence[str], method: str) -> dict[str, dict[str, list[float]]]:
    """Differences from regular decoding of the seeds that were asked, counted together."""
    pairs = [(answered(folder, name, method), answered(folder, name, "regular")) for name in names]
    out = {}
    for way in WAYS:
        both = [(getattr(a, way), getattr(b, way)) for a, b in pairs if a is not None and b is not None]
        both = [(a, b[: len(a)]) for a, b in both if a is not None and b is not None]
        if both and not (method == COOL and way == "greedy"):
            with_it, without = (sum(each) for each in zip(*both, strict=True))
            out[way] = effect(with_it, without)
    return out


def against(folder: Path, names: Sequence[str], method: str, base: str, way: str) -> dict[str, list[float]]:
    """The difference of two methods, paired by scene; empty where one was not asked."""
    both: list[tuple[Array, Array]] = []
    for name in names:
        a, b = answered(folder, name, method), answered(folder, name, base)
        if a is not None and b is not None and getattr(a, way) is not None and getattr(b, way) is not None:
            both.append((getattr(a, way), getattr(b, way)))
    if not both:
        return {}
    return effect(sum(a for a, _ in both), sum(b for _, b in both))  # type: ignore[arg-type]


def _ceiling(folder: Path, names: Sequence[str], way: str, replicates: int) -> dict[str, Any]:
    """In points and areas, seeds averaged; the interval is the mean of theirs."""
    own: dict[str, Ceiling] = {}
    for name in names:
        try:
            own[name] = recoverable(folder, name, way, replicates)
        except (InvalidInput, FileNotFoundError):  # names nothing rightly, or nothing wrongly; or was not asked
            continue
    found = list(own.values())
    if not found:
        return {}

    def mean(estimates: Sequence[Estimate], scale: float = 1.0) -> list[float]:
        parts = [(e.value * scale, e.low * scale, e.high * scale) for e in estimates]
        return [round(float(value), 4) for value in np.mean(parts, axis=0)]

    out: dict[str, Any] = {
        name: mean([getattr(each, name) for each in found], 100.0)
        for name in ("invented_now", "invented_at_same_recall", "recoverable")
    }
    out["each"] = {name: mean([each.recoverable], 100.0) for name, each in own.items()}
    shared = [name for name in found[0].signals if all(name in each.signals for each in found)]
    out["auroc"] = {name: mean([each.signals[name].auroc for each in found]) for name in shared}
    return out


def from_answers(folder: Path, model: str) -> dict[str, float]:
    """The diagnostics that the answers alone tell, by the names they have in the package."""
    pairs = believed(folder, model, "greedy")
    said, every = pairs.only(pairs.said), np.ones(len(pairs.true))
    ones = np.ones(len(said.true))
    with np.load(folder / "results" / model / "regular.npz", allow_pickle=False) as kept:
        sure, doubt, no = kept["greedy_logprob"], kept["greedy_entropy"], kept["no"]
        written = kept["greedy"][:, : sure.shape[1]] != padding()
        shown = scenes(len(kept["greedy"]))
    there = np.array([each.there for each in questions(shown)])
    return {
        "asked_auroc": auroc(pairs.odds, pairs.true, None, every),
        "entropy_auroc": auroc(-said.doubt["entropy"], said.true, None, ones),
        "logprob_auroc": auroc(said.doubt["logprob"], said.true, None, ones),
        "invented": float(1 - said.true.mean()),
        "entropy_with": float(doubt[written].mean()),
        "perplexity_with": float(np.exp(-sure[written].mean())),
        "calibration_error": calibration_error(1 - no.astype(float), there),
    }


def _diagnostics(folder: Path, names: Sequence[str]) -> dict[str, float]:
    files = [folder / "results" / name / "diagnostics.json" for name in names]
    found = [diagnosed(json.loads(file.read_text("utf-8"))) for file in files if file.is_file()]
    if not found:
        found = [from_answers(folder, name) for name in names]
    shared = [name for name in found[0] if all(name in each for each in found)] if found else []
    return {name: round(float(np.mean([each[name] for each in found])), 6) for name in shared}


def _weights(folder: Path, names: Sequence[str]) -> dict[str, str]:
    files = {name: folder / "models" / f"{name}.json" for name in names}
    return {name: json.loads(file.read_text("utf-8"))["weights"] for name, file in files.items() if file.is_file()}
