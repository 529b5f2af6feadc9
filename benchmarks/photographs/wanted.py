"""The runs of the study: which methods, asked what, in which order; and the trials that they are tuned by."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from photographs.settings import ABLATIONS, TRIED, Setting

if TYPE_CHECKING:
    from seewhen.decoding.method import Method
    from seewhen.runs.evaluate import Ask

TILT = "cai-attention"
MAIN = ("regular", "min-p", "cai", TILT, "cai-contrast", "pai", "vcd")  # CAI, its parts, its rivals
NAMES = (
    *MAIN, "cai:paper", "cai:reference", "m3id", "icd", "sid", "only", "dola", "farsight", "memvr", "locore",
    "agla", "vti", "ict", "saliency", "opera",
)  # fmt: skip
SAMPLED = 100  # photographs of sampled POPE at first: with five seeds, 9,000 answers for each method; all at last
BATCH = 450  # all captions at once: small kernels for few rows, not the rows, would take the time


def make(name: str, run: Path, setting: Setting | None = None) -> Method:
    """A row of the table with published parameters, or with a setting of its own."""
    from seewhen.decoding.method import Part
    from seewhen.methods import method

    if name == TILT and setting is not None:
        return method("cai", **setting)
    if name in (TILT, "cai-contrast"):
        return Part("attention" if name == TILT else "contrast", make("cai", run))
    if name == "cai:reference":
        return method("cai:reference:llava-1.5/coco/adversarial")
    given: dict[str, Any] = {"contrast": 3.0} if name == "cai" else {}
    if name in ("vti", "ict"):
        given["directions"] = str(run / f"{name}.safetensors")
    return method(name, **(given | dict(setting or {})))


def asks(run: Path, limit: int | None = None, batch: int = BATCH, part: str = "test") -> list[Ask]:
    """What is asked: greedy, then sampled, the most telling first."""
    from seewhen.runs.evaluate import Ask

    exam = run / "exam" / part
    # Streams of noise for 49,152 words, drawn on the CPU, would take longer than the model.
    common: dict[str, Any] = {"data": str(exam), "model": str(run / "model"), "batch": batch, "noise": "hash"}
    told: dict[str, Any] = {"image_list": str(exam / "chair.txt"), "limit": limit}
    # `limit` counts samples: POPE has six for each photograph and kind.
    asked: dict[str, Any] = {"split": "coco", "limit": limit and 18 * limit}
    found = []
    for seeds in (None, 5):
        if seeds and not limit:
            asked = asked | {"limit": 18 * SAMPLED}
        found += [
            Ask("chair", style="plain-64", seeds=seeds, **told, **common),
            Ask("pope", seeds=seeds, **asked, **common),
            Ask("chair", style="plain-128", seeds=seeds, **told, **common),
        ]
    if not limit:
        found.append(replace(found[4], limit=None))
    return found


@dataclass(frozen=True)
class Wanted:
    """One run of the study, or with a `setting` (as JSON) a trial on validation photographs, or a tuned run."""

    method: str
    ask: Ask
    setting: str | None = None
    folder: str = "runs"

    def __str__(self) -> str:
        how = f"{self.ask.seeds} seeds" if self.ask.seeds else "greedy"
        if self.ask.sampled and self.ask.benchmark == "pope" and self.ask.limit is None:
            how += " all"  # the same run goes on with the other photographs
        words = (self.method, self.setting, self.ask.benchmark, self.ask.style, how)
        return " ".join(word for word in words if word)

    @property
    def file(self) -> str:
        return "".join(c if c.isalnum() or c in "-._" else "-" if c in ":=" else "_" for c in str(self))


def in_order(methods: list[str], asked: list[Ask], greedy: bool) -> list[Wanted]:
    """Greedy runs of the main methods and of the others, then the same sampled; if cut off, the end is missing,
    not something of everything."""
    parts = [[ask for ask in asked if not ask.sampled]]
    if not greedy:
        sampled = [ask for ask in asked if ask.sampled]
        parts += [sampled[:2], sampled[2:3], sampled[3:]]  # the longer captions and the other photographs last
    found = []
    for part in parts:
        for names in ([m for m in methods if m in MAIN], [m for m in methods if m not in MAIN]):
            found += [Wanted(m, ask) for ask in part for m in names]
    return found


def trials(run: Path, methods: list[str], limit: int | None = None, batch: int = BATCH) -> list[Wanted]:
    """Every setting that is tried: captions of 300 validation photographs, questions about 100 (or `limit`)."""
    told, asked, _ = asks(run, None, batch, "validation")[:3]
    about = [replace(told, limit=limit or 300), replace(asked, limit=18 * (limit or 100))]
    found = [Wanted("regular", ask, "{}", "trials") for ask in about]
    for name in methods:
        found += [Wanted(name, ask, json.dumps(s), "trials") for s in TRIED.get(name, ()) for ask in about]
    return found


def ablation_trials(run: Path, limit: int | None = None, batch: int = BATCH) -> list[Wanted]:
    """CAI factor by factor, about the same photographs."""
    about = [wanted.ask for wanted in trials(run, [], limit, batch)]
    return [Wanted("cai", ask, json.dumps(s), "trials") for _, s in ABLATIONS for ask in about]


def tuned_runs(run: Path, limit: int | None = None, batch: int = BATCH) -> list[Wanted]:
    """Test photographs with what was chosen on others (`RUN/tuned.json`), where that is not what is published."""
    chosen: dict[str, Setting] = json.loads((run / "tuned.json").read_text("utf-8"))
    published = {name: tried[0] for name, tried in TRIED.items()} | {TILT: ABLATIONS[0][1]}
    changed = {name: json.dumps(setting) for name, setting in chosen.items() if setting != published[name]}
    return [
        Wanted(name, ask, setting, "tuned")
        for ask in asks(run, limit, batch)[:4]
        for name, setting in changed.items()
    ]


MAY_COST = 3.0  # points of recall that a setting may cost against regular decoding


def choose(tried: Sequence[Wanted], found: Mapping[Wanted, Mapping[str, float]]) -> dict[str, Setting]:
    """Each method's best setting: POPE's accuracy less CHAIR_i, among those that keep the captions' recall.
    Methods none of whose settings does, or that were not tried, keep their default. CAI without its contrast is a
    method of its own here; its settings are the ablations."""
    values: dict[str, dict[str, dict[str, float]]] = {}
    for wanted in tried:
        if wanted in found and wanted.setting is not None:
            name = TILT if json.loads(wanted.setting).get("contrast") == 1.0 else wanted.method
            both = values.setdefault(name, {}).setdefault(wanted.setting, {})
            both |= {f"{wanted.ask.benchmark} {name}": value for name, value in found[wanted].items()}
    plain = values.pop("regular", {}).get("{}", {})
    needed = plain.get("chair recall", 0.0) - MAY_COST
    chosen: dict[str, Setting] = {}
    for name, settings in values.items():
        good = {
            setting: both["pope accuracy"] - both["chair chair_i"]
            for setting, both in settings.items()
            if {"pope accuracy", "chair chair_i"} <= both.keys() and both["chair recall"] >= needed
        }
        if good:
            chosen[name] = json.loads(max(good, key=lambda setting: good[setting]))
    return chosen
