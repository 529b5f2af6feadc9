"""What was found, as numbers: CHAIR, recall, POPE and the ceiling of each model, effects with paired intervals.

Counts are kept by scene, so that every interval is a bootstrap over scenes and every difference is paired.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedded.train import stages
from embedded.train.measure import mentions
from ladder.exam import TEST, questions
from ladder.rungs import kind_of
from ladder.stand_in import Response
from seewhen.errors import InvalidInput
from seewhen.scenes.scene import Scene, dataset
from seewhen.scenes.world import CATEGORIES
from seewhen.verdicts.ceiling import Ceiling, Pairs, ceiling
from seewhen.verdicts.separation import auroc

Array = NDArray[Any]
REPLICATES = 2000
METRICS = ("chair_s", "chair_i", "recall", "f1", "tokens", "pope")
COOL = "cooler"  # regular decoding at a third of the temperature, from regular's own file


@functools.cache
def scenes(count: int) -> tuple[Scene, ...]:
    return tuple(dataset("shifted", count, seed=TEST))


@functools.cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    from seewhen.backbones.loading import resolve

    return AutoTokenizer.from_pretrained(resolve("packaged"), trust_remote_code=False)


def padding() -> int:
    """The token that fills what an answer leaves empty."""
    return int(_tokenizer().pad_token_id)


@functools.cache
def _known() -> stages.Words:
    return stages.words(_tokenizer())


# Columns of what is counted in each caption, and of the questions about each scene.
_NAMED, _INVENTED, _SINNED, _RIGHT, _THERE, _CAPTIONS, _TOKENS, _GOOD, _ASKED = range(9)


def counted(ids: Array, shown: Sequence[Scene]) -> Array:
    """Counts of captions (captions of a scene, scenes, tokens), summed by scene."""
    out = np.zeros((len(shown), 9))
    end, pad = _tokenizer().eos_token_id, _tokenizer().pad_token_id
    for group in ids:
        for row, scene in enumerate(shown):
            truth = {CATEGORIES.index(name) for name in scene.names}
            named = [category for _, category in mentions(group[row].tolist(), _known())]
            wrong = [category for category in named if category not in truth]
            length = int(((group[row] != end) & (group[row] != pad)).sum())
            out[row, :7] += (
                len(named), len(wrong), bool(wrong), len(set(named) & truth), len(truth), 1, length,
            )  # fmt: skip
    return out


def asked(chances: Array, shown: Sequence[Scene]) -> Array:
    """(good answers, questions) of each scene, from the chance of No for each question."""
    out = np.zeros((len(shown), 2))
    for each, no in zip(questions(shown), chances, strict=True):
        out[each.scene] += (1 - no if each.there else no, 1)
    return out


def values(totals: Array) -> Array:
    """The metrics, in percent (tokens as they are), of summed counts (..., 9)."""
    t = np.moveaxis(totals, -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        invented, recall = t[_INVENTED] / t[_NAMED], t[_RIGHT] / t[_THERE]
        f1 = 2 * (1 - invented) * recall / (1 - invented + recall)
        found = (t[_SINNED] / t[_CAPTIONS], invented, recall, f1, t[_TOKENS] / t[_CAPTIONS] / 100)
        return 100 * np.stack([*found, t[_GOOD] / t[_ASKED]])


@dataclass(frozen=True)
class Answered:
    """Counts by scene of one method on one model, greedy and sampled."""

    greedy: Array
    sampled: Array | None

    @staticmethod
    def read(path: Path, name: str) -> Answered | None:
        """From the file of a method; the cooler draws lie in regular's. None where the method refused."""
        with np.load(path, allow_pickle=False) as found:
            if "refused" in found:
                return None
            shown = scenes(found["greedy"].shape[0])
            greedy = counted(found["greedy"][None], shown)
            drawn = found["cool" if name == COOL else "sampled"]
            sampled = counted(drawn, shown) if len(drawn) else None
            if "no" in found:
                greedy[:, _GOOD:] = asked(found["no_firm"].astype(float), shown)
                if sampled is not None:
                    sampled[:, _GOOD:] = asked(found["no_cool" if name == COOL else "no"], shown)
        return Answered(greedy, sampled)


@functools.cache
def answered(folder: Path, model: str, name: str) -> Answered | None:
    """Of one model and method, if it was asked."""
    path = folder / "results" / model / f"{'regular' if name == COOL else name}.npz"
    return Answered.read(path, name) if path.is_file() else None


def cut_off(folder: Path, names: Sequence[str], sentences: int) -> dict[str, list[float]]:
    """A control: what regular greedy captions of these models lose when they end after so many sentences."""
    stops = [number for word, number in _tokenizer().get_vocab().items() if word.endswith(".")]
    with_it, without = [], []
    for name in names:
        with np.load(folder / "results" / name / "regular.npz", allow_pickle=False) as found:
            ids = found["greedy"]
        ended = np.cumsum(np.isin(ids, stops), axis=1)
        after = np.concatenate([np.zeros((len(ids), 1), int), ended[:, :-1]], axis=1) >= sentences
        with_it.append(counted(np.where(after, padding(), ids)[None], scenes(len(ids))))
        without.append(counted(ids[None], scenes(len(ids))))
    return effect(np.sum(with_it, axis=0), np.sum(without, axis=0))


def _weights(count: int) -> Array:
    rng = np.random.default_rng(0)
    return rng.multinomial(count, np.full(count, 1 / count), size=REPLICATES).astype(float)


def level(counts: Array) -> dict[str, list[float]]:
    """Each metric with its interval: [value, low, high]."""
    return _with_interval(values(counts.sum(0)), values(_weights(len(counts)) @ counts))


def effect(counts: Array, base: Array) -> dict[str, list[float]]:
    """The differences from `base`, paired by scene: [value, low, high]."""
    base = base[: len(counts)]
    weights = _weights(len(counts))
    drawn = values(weights @ counts) - values(weights @ base)
    return _with_interval(values(counts.sum(0)) - values(base.sum(0)), drawn)


def _with_interval(value: Array, drawn: Array) -> dict[str, list[float]]:
    found = {}
    for number, name in enumerate(METRICS):
        known = drawn[number][np.isfinite(drawn[number])]
        if np.isfinite(value[number]) and len(known):
            low, high = np.quantile(known, (0.025, 0.975))
            found[name] = [round(float(each), 3) for each in (value[number], low, high)]
    return found


def models(folder: Path) -> tuple[str, ...]:
    """Those that were asked anything."""
    return tuple(sorted(path.parent.name for path in (folder / "results").glob("*/regular.npz")))


def effects(folder: Path, model: str, names: Sequence[str]) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Of each method: how it decodes -> metric -> difference from regular decoding."""
    base = answered(folder, model, "regular")
    out: dict[str, dict[str, dict[str, list[float]]]] = {}
    for name in names:
        found = answered(folder, model, name)
        if base is None or found is None:
            continue
        ways = {"greedy": (found.greedy, base.greedy), "sampled": (found.sampled, base.sampled)}
        out[name] = {way: effect(a, b) for way, (a, b) in ways.items() if a is not None and b is not None}
        if name == COOL:
            del out[name]["greedy"]
    return out


def named_once(folder: Path, model: str, name: str, way: str) -> Array | None:
    """By scene: objects that captions name, those of them that are not there, those that are, and all that are
    there; each object of a caption once. None where the method refused."""
    with np.load(folder / "results" / model / f"{name}.npz", allow_pickle=False) as found:
        if "refused" in found:
            return None
        captions = found["greedy"][None] if way == "greedy" else found["sampled"]
    shown = scenes(captions.shape[1])
    out = np.zeros((len(shown), 4))
    for group in captions:
        for row, scene in enumerate(shown):
            truth = {CATEGORIES.index(each) for each in scene.names}
            named = {category for _, category in mentions(group[row].tolist(), _known())}
            out[row] += (len(named), len(named - truth), len(named & truth), len(truth))
    return out


def believed(folder: Path, model: str, way: str) -> Pairs:
    """All pairs of scene and category, with what the model shows of them: the material of the ceiling."""
    with np.load(folder / "results" / model / "regular.npz", allow_pickle=False) as found:
        captions = found["greedy"] if way == "greedy" else found["sampled"][0]
        doubt = {name: found[f"{way}_{name}"] for name in ("logprob", "entropy")}
        further = found["further"]
    with np.load(folder / "results" / model / "asked.npz", allow_pickle=False) as found:
        odds = found["odds"]
    shown = scenes(len(odds))
    said = np.zeros(odds.shape, bool)
    columns = {name: np.full(odds.shape, np.nan) for name in ("logprob", "entropy", "position")}
    elsewhere = np.zeros(odds.shape)
    for row in range(len(shown)):
        for at, category in mentions(captions[row].tolist(), _known()):
            if not said[row, category]:
                said[row, category] = True
                columns["position"][row, category] = at
                for name in doubt:
                    columns[name][row, category] = doubt[name][row, at]
        for draw in further:
            named = {category for _, category in mentions(draw[row].tolist(), _known())}
            elsewhere[row, list(named)] += 1 / len(further)
    true = np.array([[name in scene.names for name in CATEGORIES] for scene in shown])
    image = np.repeat(np.arange(len(shown)), len(CATEGORIES))
    flat = {name: each.ravel() for name, each in columns.items()}
    return Pairs.of(image, true.ravel(), said.ravel(), odds.ravel(), elsewhere.ravel(), **flat)


def recoverable(folder: Path, model: str, way: str, replicates: int = 500) -> Ceiling:
    """What the model knows better than it says."""
    return ceiling(believed(folder, model, way), replicates=replicates)


def signal(folder: Path, model: str) -> dict[str, float]:
    """How well asking and the word's log-probability tell invented from true first mentions of greedy captions."""
    said = believed(folder, model, "greedy")
    said = said.only(said.said)
    ones = np.ones(len(said.true))
    shown = {"asking": said.odds, "logprob": said.doubt["logprob"]}
    return {name: float(auroc(value, said.true, None, ones)) for name, value in shown.items()}


def responses(folder: Path, wanted: Sequence[str] | None = None) -> dict[str, Response]:
    """What the rule of the stand-in looks at, for each rung, seeds averaged. Nothing of CAI is read."""
    by_kind: dict[str, list[Response]] = {}
    for model in wanted or models(folder):
        by_kind.setdefault(kind_of(model), []).append(_response(folder, model))
    return {kind: _mean(found) for kind, found in by_kind.items()}


def _response(folder: Path, model: str) -> Response:
    base = answered(folder, model, "regular")
    assert base is not None and base.sampled is not None
    now = dict(zip(METRICS, values(base.sampled.sum(0)), strict=True))
    try:
        quantities = {f"auroc {name}": value for name, value in signal(folder, model).items()}
    except InvalidInput:  # nothing named rightly, or nothing wrongly
        quantities = {}
    for name in ("vcd", "pai", "only", "opera"):
        found = answered(folder, model, name)
        if found is None:
            continue
        if name == "opera":
            there = base.greedy[: len(found.greedy)].sum(0)
            before, after = values(there)[1], values(found.greedy.sum(0))[1]
            quantities["chair_i opera"] = 100 * (after / before - 1)
            continue
        assert found.sampled is not None
        then = dict(zip(METRICS, values(found.sampled.sum(0)), strict=True))
        quantities[f"pope {name}"] = then["pope"] - now["pope"]
        with np.errstate(invalid="ignore", divide="ignore"):
            for metric in ("chair_s", "chair_i"):
                quantities[f"{metric} {name}"] = 100 * (then[metric] / now[metric] - 1)
    known = {name: round(float(value), 4) for name, value in quantities.items() if np.isfinite(value)}
    greedy = dict(zip(METRICS, values(base.greedy.sum(0)), strict=True))
    return Response(round(float(now["pope"]), 3), round(float(greedy["recall"]), 3), known)


def _mean(found: Sequence[Response]) -> Response:
    names: Mapping[str, float] = found[0].quantities
    shared = [name for name in names if all(name in each.quantities for each in found)]
    return Response(
        float(np.mean([each.pope for each in found])),
        float(np.mean([each.recall for each in found])),
        {name: float(np.mean([each.quantities[name] for each in found])) for name in shared},
    )
