"""From run directories to a comparison: intervals, paired tests, published figures, and words.

Runs that differ only in the method form a group and are compared with each other. In a group every
method is tested against `regular` and, when sampling, against `min-p`; p-values of one metric are
corrected by Holm's method over the comparisons of the group, so that a long list of methods does not
find a winner by luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput
from seewhen.runs import stats
from seewhen.runs.published import Cell, find
from seewhen.runs.scoring import Scored, comparable, metrics_of, read_counts, summariser, wins_and_losses
from seewhen.runs.store import Run, config_differences, read_run

BASELINES = ("regular", "min-p")
LEVEL = 0.05


@dataclass(frozen=True)
class Metric:
    """How a metric is shown: `better` is +1 where more is better, -1 where less is, 0 where neither."""

    name: str
    title: str
    better: int
    unit: str = "points"


@dataclass(frozen=True)
class Comparison:
    """A method against a baseline on one metric."""

    against: str
    metric: Metric
    difference: stats.Difference
    p_holm: float
    tests: int  # how many comparisons the correction is over
    images_left_out: int

    @property
    def verdict(self) -> str:
        """real, unclear (test and interval disagree), open, or same (not one outcome differs)."""
        d = self.difference
        if d.value == d.low == d.high == 0:
            return "same"
        apart = d.low > 0 or d.high < 0
        if self.p_holm < LEVEL and apart:
            return "real"
        return "unclear" if self.p_holm < LEVEL or (apart and d.p < LEVEL) else "open"

    @property
    def gain(self) -> int:
        """+1 for the better, -1 for the worse, 0 where that cannot be said."""
        sign = (self.difference.value > 0) - (self.difference.value < 0)
        return sign * self.metric.better


@dataclass(frozen=True)
class Line:
    """One run in a group."""

    label: str
    run: Run
    scored: Scored
    metrics: Mapping[str, Mapping[str, Any]]  # name -> value, low, high, seed_sd, flat
    comparisons: tuple[Comparison, ...]
    questions: tuple[str, int, int, float] | None  # baseline, wins, losses, clustered McNemar p

    @property
    def speed(self) -> dict[str, float] | None:
        """Samples per second and milliseconds per token, as measured while it ran in batches."""
        seconds = sum(entry["seconds"] for entry in self.run.timing)
        tokens = sum(entry["tokens"] for entry in self.run.timing)
        samples = sum(entry["samples"] for entry in self.run.timing)
        if seconds <= 0 or not tokens:
            return None
        return {"samples_per_second": samples / seconds, "ms_per_token": 1000 * seconds / tokens}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the method."""

    title: str
    benchmark: str
    facts: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    detail: tuple[Metric, ...]  # the same by split or subtask
    lines: tuple[Line, ...]
    published: Mapping[tuple[str, str], Cell]  # (label, metric) -> the paper's figure for this very setting

    def line(self, label: str) -> Line | None:
        return next((line for line in self.lines if line.label == label), None)


_METRICS: dict[str, tuple[Metric, ...]] = {
    "pope": (
        Metric("accuracy", "Accuracy", 1),
        Metric("f1", "F1", 1),
        Metric("precision", "Precision", 1),
        Metric("recall", "Recall", 1),
        Metric("yes_ratio", "Yes ratio", 0),
        Metric("other_rate", "Neither", -1),
    ),
    "chair": (
        Metric("chair_s", "CHAIR_S", -1),
        Metric("chair_i", "CHAIR_I", -1),
        Metric("recall", "Recall", 1),
        Metric("precision", "Precision", 1),
        Metric("f1", "F1", 1),
        Metric("length", "Length", 0, "tokens"),
    ),
    "mme": (
        Metric("hallucination", "Hallucination (800)", 1),
        Metric("perception", "Perception (2000)", 1),
        Metric("cognition", "Cognition (800)", 1),
    ),
    "amber": (
        Metric("amber", "AMBER", 1),
        Metric("chair", "CHAIR", -1),
        Metric("cover", "Cover", 1),
        Metric("hal", "Hal", -1),
        Metric("cog", "Cog", -1),
        Metric("accuracy", "Accuracy", 1),
        Metric("f1", "F1", 1),
    ),
}
_DETAIL = {"pope": ("accuracy", "f1"), "mme": ("score",), "amber": ("accuracy", "f1")}


def primary_metric(benchmark: str, metrics: Mapping[str, Any], name: str | None = None) -> Metric:
    """The metric a benchmark is judged by (the first it has), or the one named."""
    if name is None:
        known = [metric for metric in _METRICS[benchmark] if metric.name in metrics]
        return known[0] if known else Metric(next(iter(metrics)), next(iter(metrics)), 1)
    if name not in metrics:
        raise InvalidInput(f"{benchmark} has no metric {name!r} here.", f"Use one of {', '.join(metrics)}.")
    inner = name.rpartition("/")[2]
    return Metric(name, _title(benchmark, inner), _direction(benchmark, inner) or 1)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Finished runs; a folder that holds run directories stands for all of them."""
    found: dict[Path, Run] = {}
    unfinished = []
    for path in paths:
        inner = sorted(p.parent for p in path.glob("*/manifest.json")) if path.is_dir() else []
        for each in [path] if (path / "manifest.json").exists() or not inner else inner:
            run = read_run(each)
            if run.result is None:
                unfinished.append(each)
            else:
                found[each.resolve()] = run
    if not found:
        some = f"{unfinished[0]} is not finished." if unfinished else "No run directories were given."
        raise InvalidInput(f"There is nothing to report. {some}", "Run `seewhen eval` again to finish it.")
    return list(found.values())


def _setting(run: Run) -> dict[str, Any]:
    """All of a configuration that makes two runs incomparable when it differs."""
    config = {key: value for key, value in run.config.items() if key not in ("method", "versions")}
    # How many were asked is a matter of the plan, not of the configuration.
    result = run.result or {}
    return {**config, "samples": result.get("samples"), "seeds": result.get("seeds")}


def analyse(runs: Sequence[Run]) -> list[Group]:
    """Groups of comparable runs with all their comparisons."""
    groups: list[list[Run]] = []
    for run in runs:
        for group in groups:
            if not config_differences(_setting(group[0]), _setting(run)):
                group.append(run)
                break
        else:
            groups.append([run])
    groups.sort(key=lambda group: _place(group[0]))
    return [_group(group) for group in groups]


def _place(run: Run) -> tuple[str, str, bool, int]:
    """Where a group stands in the report: by benchmark, part, decoding, then length."""
    asked, decoding = run.config["benchmark"], run.config["decoding"]
    sampled = decoding["mode"] != "greedy"
    return asked["name"], asked["split"] or "", sampled, int(decoding["max_new_tokens"])


def _group(runs: Sequence[Run]) -> Group:
    config = runs[0].config
    benchmark = config["benchmark"]["name"]
    labels = _labels(runs)
    order = sorted(range(len(runs)), key=lambda i: (_rank(labels[i]), labels[i]))
    scored = {labels[i]: read_counts(runs[i].path) for i in order}
    names = list((runs[0].result or {})["metrics"])
    metrics = tuple(m for m in _METRICS[benchmark] if m.name in names)
    detail = tuple(
        Metric(name, f"{group} {_title(benchmark, inner)}", _direction(benchmark, inner))
        for name in names
        for group, _, inner in [name.rpartition("/")]
        if group and inner in _DETAIL.get(benchmark, ())
    )
    # Greedy decoding takes the likeliest token, which the cut never removes: min-p is regular there.
    baselines = BASELINES if config["decoding"]["mode"] == "sample" else BASELINES[:1]
    comparisons = _compare(benchmark, scored, baselines, (*metrics, *detail))
    lines = tuple(
        Line(
            label=labels[i],
            run=runs[i],
            scored=scored[labels[i]],
            metrics=(runs[i].result or {})["metrics"],
            comparisons=tuple(comparisons.get(labels[i], ())),
            questions=_questions(labels[i], scored),
        )
        for i in order
    )
    warmth = config["decoding"].get("temperature")
    facts = {
        "benchmark": benchmark,
        "data": config["benchmark"]["data"],
        "split": config["benchmark"]["split"] or "all",
        "prompt": config["benchmark"]["style"],
        **config["benchmark"]["settings"],
        "model": Path(str(config["model"]["name"])).name,
        "precision": config["model"]["dtype"],
        "decoding": config["decoding"]["mode"],
        **({"temperature": warmth} if warmth not in (None, 1.0) else {}),
        "max new tokens": config["decoding"]["max_new_tokens"],
        "samples": (runs[0].result or {})["samples"],
        "images": (runs[0].result or {})["images"],
        "seeds": (runs[0].result or {})["seeds"],
    }
    return Group(
        title=_group_title(facts),
        benchmark=benchmark,
        facts=facts,
        metrics=metrics,
        detail=detail,
        lines=lines,
        published=_published(config, labels, (*metrics, *detail)),
    )


def _group_title(facts: Mapping[str, Any]) -> str:
    warmth = f" at temperature {facts['temperature']:.2g}" if "temperature" in facts else ""
    decoding = "greedy" if facts["decoding"] == "greedy" else f"sampled{warmth}, {_count(facts['seeds'], 'seed')}"
    images = _count(facts["images"], "image")
    where = "scenes" if facts["data"] == "scenes" else "files"
    # CHAIR falls mechanically with the length allowed, so its groups are told apart by it.
    tokens = f", {facts['max new tokens']} tokens" if facts["benchmark"] in ("chair", "amber") else ""
    name = f"{str(facts['benchmark']).upper()} {facts['split']}"
    return f"{name} ({where}, {images}), {facts['model']}, {decoding}{tokens}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _rank(label: str) -> int:
    return BASELINES.index(label) if label in BASELINES else len(BASELINES)


def _labels(runs: Sequence[Run]) -> list[str]:
    """Method labels, made different by the parameters that differ where one method ran twice."""
    plain = [run.config["method"]["label"] for run in runs]
    labels = []
    for label, run in zip(plain, runs, strict=True):
        if plain.count(label) > 1:
            label += f" ({_what_differs(run, [r for r, p in zip(runs, plain, strict=True) if p == label])})"
        labels.append(label)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InvalidInput(f"The run of {twice} is given twice.", "Leave one of the directories out.")
    return labels


def _what_differs(run: Run, others: Sequence[Run]) -> str:
    """The preset nearest to the run's parameters and what departs from it; failing that, what differs."""
    from seewhen.runs.controls import nearest_preset
    from seewhen.runs.store import flatten

    named = nearest_preset(run.config["method"])
    if named:
        return named
    mine = dict(flatten(run.config["method"].get("parameters", {})))
    theirs = [dict(flatten(other.config["method"].get("parameters", {}))) for other in others]
    changed = [name for name in mine if any(other.get(name) != mine[name] for other in theirs)]
    shown = ", ".join(f"{name.rpartition('.')[2]} {mine[name]}" for name in changed[:3])
    return shown or str(run.config["method"]["fingerprint"])[:6]


def _title(benchmark: str, name: str) -> str:
    return next((m.title for m in _METRICS[benchmark] if m.name == name), name)


def _direction(benchmark: str, name: str) -> int:
    return next((m.better for m in _METRICS[benchmark] if m.name == name), 1)


def _compare(
    benchmark: str, scored: Mapping[str, Scored], baselines: Sequence[str], metrics: Sequence[Metric]
) -> dict[str, list[Comparison]]:
    """All comparisons, corrected metric by metric."""
    pairs = [
        (label, baseline)
        for baseline in baselines
        if baseline in scored
        for label in scored
        if _rank(label) > _rank(baseline)
    ]
    summary = metrics_of(summariser(benchmark))
    found: dict[str, list[Comparison]] = {}
    raw = []
    for label, baseline in pairs:
        a, b, left_out = comparable(scored[label], scored[baseline])
        raw.append((label, baseline, left_out, stats.differences(a, b, summary)))
    for metric in metrics:
        adjusted = stats.holm([differences[metric.name].p for *_, differences in raw])
        for (label, baseline, left_out, differences), p in zip(raw, adjusted, strict=True):
            found.setdefault(label, []).append(
                Comparison(baseline, metric, differences[metric.name], p, len(pairs), left_out)
            )
    return found


def _questions(label: str, scored: Mapping[str, Scored]) -> tuple[str, int, int, float] | None:
    baseline = BASELINES[0]
    if baseline not in scored or label == baseline:
        return None
    wins, losses, net = wins_and_losses(scored[label], scored[baseline])
    return baseline, wins, losses, stats.mcnemar_clustered(net).p


def paper_model(name: str) -> str | None:
    """The paper's name of a model, or None where it did not use it."""
    short = Path(name).name.lower()
    if "llava-1.5" in short or "llava-v1.5" in short:
        return "LLaVA-1.5"
    if "instructblip" in short:
        return "InstructBLIP"
    if "qwen3.5-4b" in short:
        return "Qwen3.5-4B"
    return "Qwen-VL" if "qwen-vl" in short else None


def _published(
    config: Mapping[str, Any], labels: Sequence[str], metrics: Sequence[Metric]
) -> dict[tuple[str, str], Cell]:
    """The paper's figures for the same model, benchmark and setting, where there are any."""
    model = paper_model(str(config["model"]["name"]))
    if model is None or config["benchmark"]["data"] == "scenes":
        return {}
    found = {}
    for label in labels:
        for metric in metrics:
            cells = _cells(config, model, label, metric.name)
            if cells:
                found[label, metric.name] = cells[0]
    return found


def _cells(config: Mapping[str, Any], model: str, label: str, metric: str) -> tuple[Cell, ...]:
    benchmark = config["benchmark"]["name"]
    common = {"benchmark": benchmark, "model": model, "method": label}
    group, _, inner = metric.rpartition("/")
    if benchmark == "pope":
        split = group or str(config["benchmark"]["split"] or "")
        dataset, _, kind = split.partition("-")
        return find(**common, dataset=dataset, split=kind, metric=inner)
    if benchmark == "chair":
        return find(**common, metric=metric, max_new_tokens=config["decoding"]["max_new_tokens"])
    if benchmark == "mme":
        return find(**common, metric="score" if metric == "hallucination" else group)
    return ()
