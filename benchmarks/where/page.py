"""The tables of docs/evidence.md about places, from results/: `python -m where.page`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scale.plan import filled
from seewhen.runs.grid import pipe_table
from where.score import settings

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "evidence.md"
RESULTS = HERE / "results"
RUNGS = RESULTS / "rungs"  # models of the ladder, fewer settings
_LOOKS = ("similarity", "attention", "the next word")
_TESTS = (  # pairs of settings, and what of them; a difference of CHAIR_I alone says little without its recall
    ("boxes less other boxes", "chair_i"),
    ("boxes less other boxes", "recall"),
    ("boxes less regular", "chair_i"),
    ("boxes less regular", "recall"),
)


def results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """Scores by the name of their file."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("scores-*.json"))}


def shapes() -> dict[str, dict[str, Any]]:
    """What tilts do to attention, by the name of the file."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(RESULTS.glob("smear-*.json"))}


def called(name: str, found: dict[str, Any]) -> str:
    """The model, the machine and the number of pictures."""
    model = name.removeprefix("scores-").removeprefix("smear-")
    for run in ("-gpu", "-cpu", "-relevances"):
        model = model.removesuffix(run)
    pictures = found["questions"]["images"] if "questions" in found else found["diagnostics"]["pictures"]
    return f"{model}, {pictures} pictures"


def change(found: Sequence[float], p: float | None = None) -> str:
    """A difference with its interval, bold where it counts after correction."""
    value, low, high = (f"{each:+.1f}".replace("-", "−") for each in found)
    text = f"{value} ({low} to {high})"
    return f"**{text}**" if p is not None and p < 0.05 else text


def _line(lines: Sequence[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((line for line in lines if line["of"] == name), None)


def _captions(folder: Path = RESULTS) -> Iterator[tuple[str, ...]]:
    for name, found in results(folder).items():
        scores, tested = found["captions"], found["hypotheses"]
        if not tested["boxes less other boxes"]:  # its boxes are there for relevances to be compared with
            continue
        for setting in settings():
            values = [
                scores.get(f"{place}, {setting}") for place in ("boxes", "other boxes", "elsewhere", "uniform")
            ]
            if not values[0]:
                continue
            shown = [f"{each['chair_i'][0]:.1f}" if each else "" for each in (scores["regular"], *values)]
            tests = [
                change(line[metric], line[f"p_{metric}"])
                if (line := _line(tested[pair], f"boxes, {setting}"))
                else ""
                for pair, metric in _TESTS
            ]
            yield (called(name, found), setting, *shown, *tests)


def _relevances() -> Iterator[tuple[str, ...]]:
    for name, found in results().items():
        for line in found["hypotheses"]["relevance less boxes"]:
            plain = _line(found["hypotheses"]["relevance less regular"], line["of"])
            assert plain is not None and line["of"].startswith(_LOOKS)
            yield (
                called(name, found),
                line["of"].removesuffix(" from 0.85"),
                f"{found['captions'][line['of']]['chair_i'][0]:.1f}",
                *(change(one[m], one[f"p_{m}"]) for one in (line, plain) for m in ("chair_i", "recall")),
            )


def _questions() -> Iterator[tuple[str, ...]]:
    for name, found in results().items():
        for line in found["questions"]["settings"]:
            own, gap = line["there"]["right less wrong"], line["auroc, right less regular"]
            areas = [found["questions"]["regular"]["auroc"], *line["auroc"].values()]
            odds = "{:+.2f} ({:+.2f} to {:+.2f})".format(*own).replace("-", "−")
            yield (
                called(name, found),
                line["setting"],
                f"**{odds}**" if line["p_right_less_wrong"] < 0.05 else odds,
                *(f"{area[0]:.3f}" for area in areas),
                "{:+.3f} ({:+.3f} to {:+.3f})".format(*gap).replace("-", "−"),
            )


def _shapes() -> Iterator[tuple[str, ...]]:
    for name, found in shapes().items():
        for tilt, shape in found["tilts"].items():
            layers, spread = shape["layers"], (_span(shape[f"effective_{when}"]) for when in ("before", "after"))
            yield (
                called(name, found),
                tilt,
                f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else str(layers[0]),
                f"{_span(shape['negative_scores'], 100)} %",
                f"{' → '.join(spread)} of {shape['patches']:.0f}",
                f"{_span(shape['mass_before'], 1, 2)} → {_span(shape['mass_after'], 1, 2)}",
                _span(shape["to_regular"], 1, 2),
                _span(shape["to_uniform"], 1, 2),
            )


def _span(values: Sequence[float], scale: float = 1.0, digits: int = 0) -> str:
    low, high = (f"{scale * value:.{digits}f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def tables() -> dict[str, str]:
    """By the mark in the page."""
    tilted = ("model", "tilt, strength and start")
    tested = (pair if metric == "chair_i" else f"{metric}, {pair}" for pair, metric in _TESTS)
    captions = (*tilted, "regular", "boxes", "other boxes", "elsewhere", "uniform", *tested)
    beside = [f"{m}less {other}" for other in ("the boxes", "regular") for m in ("", "recall, ")]
    relevances = ("model", "relevance and strength", "CHAIR_I", *beside)
    areas = ("AUROC, regular", "right", "wrong", "uniform", "right less regular")
    questions = (*tilted, "odds, right less wrong place", *areas)
    attention = ("model", "tilt", "layers", "scores below zero", "patches", "on the image")
    return {
        "where captions": pipe_table(captions, list(_captions())),
        "where rungs": pipe_table(captions, list(_captions(RUNGS))),
        "where relevances": pipe_table(relevances, list(_relevances())),
        "where questions": pipe_table(questions, list(_questions())),
        "where shapes": pipe_table((*attention, "from none", "from uniform"), list(_shapes())),
    }


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text("utf-8"), tables()), "utf-8")


if __name__ == "__main__":
    main()
