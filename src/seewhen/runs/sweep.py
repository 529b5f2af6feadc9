"""Sweeps: a grid over any fields of a method, tuned on some images, reported on others.

Thresholds chosen on the images they are reported on flatter the method. Here the choice is made on
validation images (the packaged scenes have a part for it; of published sets a fixed fifth of the images
is kept for it) and the chosen setting is then run, with its controls, on the rest.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from seewhen.atomic import write
from seewhen.benchmarks import SCENES
from seewhen.benchmarks.base import Metric
from seewhen.errors import InvalidInput
from seewhen.methods.grammar import label, read_setting, split
from seewhen.runs import wording
from seewhen.runs.grid import Grid
from seewhen.runs.plots import line_plot
from seewhen.runs.published import document
from seewhen.runs.report import primary_metric
from seewhen.runs.report_page import TEMPLATES, style
from seewhen.runs.store import to_json

if TYPE_CHECKING:
    from seewhen.decoding.method import Method
    from seewhen.runs.evaluate import Ask, Machine

HELD_OUT = 0.2
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """One setting of the grid with its scores on the validation images."""

    values: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Any]]
    run: str


@dataclass(frozen=True)
class Sweep:
    """What a sweep found."""

    method: str
    metric: Metric
    grid: Mapping[str, tuple[Any, ...]]
    points: tuple[Point, ...]
    best: Point
    tuned_on: str
    reported_on: str
    test: Mapping[str, Mapping[str, Any]]  # method label -> its metrics on the test images


def parse_grid(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """["gamma=0.1,0.2"] as {"gamma": ("0.1", "0.2")}."""
    grid: dict[str, tuple[str, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values.strip():
            raise InvalidInput(f"{text!r} is not a grid.", "Write name=value,value,... as in gamma=0.1,0.2")
        if name.strip() in grid:
            raise InvalidInput(f"{name} is swept twice.", "Put all its values into one --grid.")
        grid[name.strip()] = tuple(split(values, ","))
    if not grid:
        raise InvalidInput("A sweep needs at least one parameter.", "For example --grid gamma=0.05,0.1,0.15")
    return grid


def typed_grid(method: Method, grid: Mapping[str, Sequence[str]]) -> dict[str, tuple[Any, ...]]:
    """The grid with the parameters' own names and values: {"threshold": (0.1, 0.2)}."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, texts in grid.items():
        pairs = [read_setting(method, name, text) for text in texts]
        field = pairs[0][0]
        if field in found:
            raise InvalidInput(f"{field} is swept twice.", "Put all its values into one --grid.")
        found[field] = tuple(dict.fromkeys(value for _, value in pairs))
    return found


def held_out(image: str) -> bool:
    """Whether an image is kept for tuning: decided by its name alone, the same everywhere."""
    number = int.from_bytes(hashlib.sha256(f"tune/{image}".encode()).digest()[:8], "big")
    return number / 2**64 < HELD_OUT


def sweep(
    ask: Ask,
    method: Method,
    grid: Mapping[str, Sequence[Any]],
    out: Path,
    machine: Machine,
    *,
    metric: str | None = None,
    controls: bool = True,
    say: Progress = lambda text: None,
) -> Sweep:
    """Runs the grid on the validation images, the best setting and its controls on the others."""
    from seewhen.runs.evaluate import evaluate, model_facts
    from seewhen.runs.light_model import LightModel

    tune, report, tune_images, test_images, told = _parts(ask)
    model = model_facts(ask, machine.device)
    settings = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    light = LightModel.of(ask)
    variants = [method.replace(**values) for values in settings]
    for variant in variants:
        light.check(variant)  # a setting that cannot run fails here, before any run
    benchmark = tune.load()
    points = []
    for number, (values, variant) in enumerate(zip(settings, variants, strict=True), start=1):
        say(f"{number}/{len(settings)}: {_show(values)}")
        prepared = (benchmark, model)
        path, result = evaluate(tune, variant, out / "tune", machine, keep=tune_images, prepared=prepared)
        points.append(Point(values, result["metrics"], path.name))
    chosen = primary_metric(benchmark.name, points[0].metrics, metric)
    best = max(points, key=lambda point: chosen.better * point.metrics[chosen.name]["value"])
    winner = method.replace(**best.values)
    say(f"chosen: {_show(best.values)}; now on the test images")
    prepared = (report.load(), model)
    test = {}
    for each in light.with_controls(winner) if controls else [winner]:
        _, result = evaluate(report, each, out / "test", machine, keep=test_images, prepared=prepared)
        test[label(each)] = result["metrics"]
    return Sweep(
        label(method), chosen, {k: tuple(v) for k, v in grid.items()}, tuple(points), best, *told, test=test
    )


def _parts(ask: Ask) -> tuple[Ask, Ask, frozenset[str] | None, frozenset[str] | None, tuple[str, str]]:
    """What to tune on and what to report on: asks, the images to keep, and both in words."""
    if ask.data == SCENES:
        part, _, kind = (ask.split or "test").partition("-")
        if part == "val":
            raise InvalidInput("The validation scenes are for tuning.", "Report on test or shifted.")
        tune = replace(ask, split="val" + (f"-{kind}" if kind else ""))
        return tune, ask, None, None, (f"scenes, part {tune.split}", f"scenes, part {ask.split or 'test'}")
    images = {sample.image for sample in ask.load().samples()}
    tune_images = frozenset(image for image in images if held_out(image))
    rest = frozenset(images - tune_images)
    if not tune_images or not rest:
        raise InvalidInput(f"{len(images)} images are too few to keep some for tuning.", "Use more images.")
    told = (f"{len(tune_images)} held-out images", f"the other {len(rest)} images")
    return ask, ask, tune_images, rest, told


def _show(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def curves(found: Sweep) -> list[tuple[str, str]]:
    """Plots (name, SVG): the first field with the second as separate curves, every other field by itself."""
    numeric = [f for f, values in found.grid.items() if len(values) > 1 and all(map(_is_number, values))]
    plots = []
    for index, field in enumerate(numeric):
        if index == 1:
            continue  # it is drawn as the curves of the first plot
        by = numeric[1] if index == 0 and len(numeric) > 1 else None
        series = _series(found, field, by)
        mark = (_curve_name(found, by, found.best.values), float(found.best.values[field]))
        plots.append((field, line_plot(series, field, f"{found.metric.title} (validation)", mark)))
    return plots


def _series(found: Sweep, field: str, by: str | None) -> dict[str, list[tuple[float, float, float, float]]]:
    series: dict[str, list[tuple[float, float, float, float]]] = {}
    for point in found.points:
        others = [f for f in found.grid if f not in (field, by)]
        if any(point.values[f] != found.best.values[f] for f in others):
            continue
        entry = point.metrics[found.metric.name]
        name = _curve_name(found, by, point.values)
        series.setdefault(name, []).append(
            (float(point.values[field]), entry["value"], entry["low"], entry["high"])
        )
    return {name: sorted(curve) for name, curve in series.items()}


def _curve_name(found: Sweep, by: str | None, values: Mapping[str, Any]) -> str:
    return found.method if by is None else f"{by} = {values[by]}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def write_sweep(found: Sweep, out: Path) -> list[Path]:
    """sweep.json, one SVG per plot, and sweep.html."""
    metric = found.metric
    top = found.best.metrics[metric.name]["value"]
    files = {"sweep.json": to_json(_plain(found))}
    plots = curves(found)
    for field, svg in plots:
        files[f"ablation-{field}.svg"] = svg.replace(">", f"><style>{style()}</style>", 1) + "\n"
    ordered = sorted(found.points, key=lambda p: -metric.better * p.metrics[metric.name]["value"])
    tuned = Grid(
        f"All settings on the validation images ({found.tuned_on})",
        (*found.grid, metric.title),
        tuple(
            (*(str(p.values[f]) for f in found.grid), wording.measured(p.metrics[metric.name])) for p in ordered
        ),
    )
    tested = Grid(
        f"The chosen setting and its controls on the test images ({found.reported_on})",
        ("Method", metric.title),
        tuple((wording.title(name), wording.measured(m[metric.name])) for name, m in found.test.items()),
        ("These images had no part in the choice. `seewhen report` on the folder test/ compares them in pairs.",),
    )
    files["sweep.html"] = TEMPLATES.get_template("sweep.html").render(
        title="seewhen sweep",
        method=wording.title(found.method),
        metric=metric.title,
        chosen=_show(found.best.values),
        tied=sum(p.metrics[metric.name]["value"] == top for p in found.points) - 1,
        plots=[Markup(svg) for _, svg in plots],
        tested=tested,
        tuned=tuned,
        published=document()["ablations"],
    )
    for name, text in files.items():
        write(out / name, text, durable=True)
    return [out / name for name in files]


def _plain(found: Sweep) -> dict[str, Any]:
    return {
        "format": 1,
        "method": found.method,
        "metric": found.metric.name,
        "grid": {name: list(values) for name, values in found.grid.items()},
        "tuned_on": found.tuned_on,
        "reported_on": found.reported_on,
        "best": dict(found.best.values),
        "points": [
            {"values": dict(p.values), "run": p.run, "metrics": {k: dict(v) for k, v in p.metrics.items()}}
            for p in found.points
        ],
        "test": {name: {k: dict(v) for k, v in metrics.items()} for name, metrics in found.test.items()},
    }
