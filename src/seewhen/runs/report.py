"""From run directories to a comparison: intervals, paired tests, published figures, and words.

Runs that differ only in the method form a group and are compared with each other. In a group every
method is tested against `regular` and, when sampling, against `min-p`; p-values of one metric are
corrected by Holm's method over the comparisons of the group, so that a long list of methods does not
find a winner by luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from seewhen.benchmarks import benchmark_class
from seewhen.benchmarks.base import Benchmark, Metric
from seewhen.decoding.naming import name_in
from seewhen.errors import InvalidInput
from seewhen.methods.grammar import label_of
from seewhen.runs import stats
from seewhen.runs.cutting import Control, control, read_cuts
from seewhen.runs.published import Cell, find
from seewhen.runs.scoring import Scored, check_counts, comparable, metrics_of, read_counts, wins_and_losses
from seewhen.runs.store import Run, check_run, config_differences, read_run

BASELINES = ("regular", "min-p")
LEVEL = 0.05
SWAPS_NEAR_THE_LINE = 100_000


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
        ms = self.run.ms_per_token
        if ms is None:
            return None
        return {"samples_per_second": self.run.took("samples") / self.run.took("seconds"), "ms_per_token": ms}


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the method."""

    title: str
    benchmark: type[Benchmark]
    facts: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    detail: tuple[Metric, ...]  # the same by split or subtask
    lines: tuple[Line, ...]
    published: Mapping[tuple[str, str], Cell]  # (label, metric) -> the paper's figure for this very setting
    shorter: Control | None = None  # CHAIR: regular captions cut off, and the methods beside them
    page: str = ""  # of its answers, next to the report

    def link(self, label: str, part: str = "") -> str:
        """Where the answers behind a number are; empty if there is no page of them."""
        return f"{self.page}#{urlencode({'run': label, **({'part': part} if part else {})})}" if self.page else ""

    def line(self, label: str) -> Line | None:
        return next((line for line in self.lines if line.label == label), None)


def primary_metric(benchmark: str, metrics: Mapping[str, Any], name: str | None = None) -> Metric:
    """The metric a benchmark is judged by (the first it has), or the one named."""
    kind = benchmark_class(benchmark)
    if name is None:
        name = next((metric.name for metric in kind.metrics if metric.name in metrics), next(iter(metrics)))
    if name not in metrics:
        raise InvalidInput(f"{benchmark} has no metric {name!r} here.", f"Use one of {', '.join(metrics)}.")
    found = kind.metric(name)
    return found if found.better else replace(found, better=1)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Finished runs; a folder that holds run directories stands for all of them."""
    found: dict[Path, Run] = {}
    unfinished = []
    for path in paths:
        inner = sorted(p.parent for p in path.glob("*/manifest.json")) if path.is_dir() else []
        for each in [path] if (path / "manifest.json").exists() or not inner else inner:
            run = check_run(read_run(each))
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
    benchmark = benchmark_class(config["benchmark"]["name"])
    labels = _labels(runs)
    order = sorted(range(len(runs)), key=lambda i: (_rank(labels[i]), labels[i]))
    scored = {labels[i]: read_counts(runs[i].path) for i in order}
    results = [(run.result or {})["metrics"] for run in runs]
    names = [name for name in results[0] if all(name in metrics for metrics in results)]
    metrics = tuple(m for m in benchmark.metrics if m.name in names)
    detail = tuple(
        benchmark.metric(name)
        for name in names
        for part, _, inner in [name.rpartition("/")]
        if part and inner in benchmark.by_part
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
    cuts = read_cuts(runs[labels.index("regular")].path) if "regular" in labels else {}
    temperature = config["decoding"].get("temperature")
    facts = {
        "benchmark": benchmark.name,
        "data": config["benchmark"]["data"],
        "split": config["benchmark"]["split"] or "all",
        "prompt": config["benchmark"]["style"],
        **config["benchmark"]["settings"],
        "model": Path(str(config["model"]["name"])).name,
        "precision": config["model"]["dtype"],
        "decoding": config["decoding"]["mode"],
        **({"temperature": temperature} if temperature not in (None, 1.0) else {}),
        "max new tokens": config["decoding"]["max_new_tokens"],
        "samples": (runs[0].result or {})["samples"],
        "images": (runs[0].result or {})["images"],
        "seeds": (runs[0].result or {})["seeds"],
    }
    return Group(
        title=_group_title(benchmark, facts),
        benchmark=benchmark,
        facts=facts,
        metrics=metrics,
        detail=detail,
        lines=lines,
        published=_published(benchmark, runs, labels, (*metrics, *detail)),
        shorter=control(scored, cuts, metrics_of(benchmark.summarise)),
    )


def _group_title(benchmark: type[Benchmark], facts: Mapping[str, Any]) -> str:
    temperature = f" at temperature {facts['temperature']:.2g}" if "temperature" in facts else ""
    sampled = f"sampled{temperature}, {_count(facts['seeds'], 'seed')}"
    decoding = "greedy" if facts["decoding"] == "greedy" else sampled
    images = _count(facts["images"], "image")
    where = "scenes" if facts["data"] == "scenes" else "files"
    tokens = f", {facts['max new tokens']} tokens" if benchmark.length_counts else ""
    name = f"{str(facts['benchmark']).upper()} {facts['split']}"
    return f"{name} ({where}, {images}), {facts['model']}, {decoding}{tokens}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _rank(label: str) -> int:
    return BASELINES.index(label) if label in BASELINES else len(BASELINES)


def _labels(runs: Sequence[Run]) -> list[str]:
    labels = [label_of(run.config["method"]) for run in runs]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise InvalidInput(f"The run of {twice} is given twice.", "Leave one of the directories out.")
    return labels


def _compare(
    benchmark: type[Benchmark],
    scored: Mapping[str, Scored],
    baselines: Sequence[str],
    metrics: Sequence[Metric],
) -> dict[str, list[Comparison]]:
    """All comparisons, corrected metric by metric."""
    pairs = [
        (label, baseline)
        for baseline in baselines
        if baseline in scored
        for label in scored
        if _rank(label) > _rank(baseline)
    ]
    summary = metrics_of(benchmark.summarise)
    check_counts(scored, summary, [metric.name for metric in metrics])
    found: dict[str, list[Comparison]] = {}
    raw = []
    for label, baseline in pairs:
        a, b, left_out = comparable(scored[label], scored[baseline])
        raw.append((label, baseline, left_out, stats.differences(a, b, summary)))
    for place in _near_the_line([differences for *_, differences in raw], metrics):
        label, baseline, left_out, differences = raw[place]
        a, b, _ = comparable(scored[label], scored[baseline])
        again = stats.swap_test(a, b, summary, SWAPS_NEAR_THE_LINE)
        raw[place] = label, baseline, left_out, {n: replace(d, p=again[n]) for n, d in differences.items()}
    for metric in metrics:
        adjusted = stats.holm([differences[metric.name].p for *_, differences in raw])
        for (label, baseline, left_out, differences), p in zip(raw, adjusted, strict=True):
            found.setdefault(label, []).append(
                Comparison(baseline, metric, differences[metric.name], p, len(pairs), left_out)
            )
    return found


def _near_the_line(tested: Sequence[Mapping[str, stats.Difference]], metrics: Sequence[Metric]) -> list[int]:
    """Comparisons whose corrected p-value is so near to LEVEL that chance in drawing the swaps could decide."""
    near: set[int] = set()
    for metric in metrics:
        adjusted = stats.holm([differences[metric.name].p for differences in tested])
        near |= {place for place, p in enumerate(adjusted) if LEVEL / 2 < p < 2 * LEVEL}
    return sorted(near)


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
    benchmark: type[Benchmark], runs: Sequence[Run], labels: Sequence[str], metrics: Sequence[Metric]
) -> dict[tuple[str, str], Cell]:
    """The paper's figures for the same model, benchmark and setting, where there are any."""
    config = runs[0].config
    model = paper_model(str(config["model"]["name"]))
    if model is None or config["benchmark"]["data"] == "scenes":
        return {}
    split, length = str(config["benchmark"]["split"] or ""), int(config["decoding"]["max_new_tokens"])
    found = {}
    for metric in metrics:
        where = benchmark.published(metric.name, split, length)
        if where is None:
            continue
        for label, run in zip(labels, runs, strict=True):
            # Rows of the paper's tables are named without parameters: cai, cai:attention.
            cells = find(benchmark=benchmark.name, model=model, method=name_in(run.config["method"]), **where)
            if cells:
                found[label, metric.name] = cells[0]
    return found
