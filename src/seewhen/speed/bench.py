"""The work of `seewhen bench`: builds the inputs, measures and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seewhen.asking.doctor import machine_facts
from seewhen.asking.options import DESCRIBE
from seewhen.atomic import replacing
from seewhen.atomic import write as whole
from seewhen.decoding.fast import check
from seewhen.decoding.method import Method
from seewhen.errors import InvalidInput
from seewhen.methods import method as make_method
from seewhen.methods.grammar import label
from seewhen.speed.measure import Cost, costs, interval, read_bandwidth

COLUMNS = (
    "method",
    "way",
    "batch",
    "image tokens",
    "prefill ms",
    "ms/token",
    "tokens/s",
    "ratio",
    "floor",
    "memory",
)


@dataclass(frozen=True)
class Subject:
    """A model to measure, and how to make a batch for it."""

    name: str
    model: Any
    inputs: Callable[[int, int], Mapping[str, Any]]  # (batch, images per prompt)
    tokenizer: Any


def measured(
    model: str,
    methods: Iterable[Method],
    *,
    batches: list[int],
    images: list[int],
    ways: list[str],
    tokens: int,
    repeats: int,
    loading: Mapping[str, Any],
    progress: Callable[[str], None],
) -> tuple[dict[str, Any], list[Cost]]:
    """What the methods cost, regular decoding first: all that is known as JSON, and the table's rows."""
    for way in ways:
        check(way)
    subject = _subject(model, dict(loading))
    chosen = {label(method): _prepared(method, subject) for method in (make_method("regular"), *methods)}
    found: list[Cost] = []
    left_out: dict[str, str] = {}
    for way in ways:
        for count in images:
            more, failures = costs(
                subject.model,
                lambda batch, count=count: subject.inputs(batch, count),  # type: ignore[misc]
                chosen,
                batches=batches,
                tokens=tokens,
                repeats=repeats,
                fast=way,  # type: ignore[arg-type]
                progress=lambda text, way=way: progress(f"{way}, {text}"),  # type: ignore[misc]
            )
            found += more
            left_out |= failures
    return _result(subject, found, left_out), found


def _prepared(method: Method, subject: Subject) -> Method:
    """With what only a tokenizer can tell; a shape has none."""
    return method if subject.tokenizer is None else method.prepare(subject.tokenizer)


def _subject(name: str, loading: dict[str, Any]) -> Subject:
    import torch

    from seewhen.backbones.shapes import is_shape, random_inputs, random_model, shape_config

    if not is_shape(name):
        return _checkpoint(name, loading)
    unknown = set(loading) - {"device", "dtype"}
    if unknown:
        raise InvalidInput(f"A shape has no {', '.join(sorted(unknown))}.", "Only --device and --dtype apply.")
    config = shape_config(name)
    device = loading.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")
    given = loading.get("dtype", "auto")
    dtype = torch.bfloat16 if given == "auto" else getattr(torch, given)
    model = random_model(config, device=device, dtype=dtype)

    def inputs(batch: int, images: int) -> Mapping[str, Any]:
        return random_inputs(config, rows=batch, images=images, device=device, dtype=dtype)

    return Subject(name, model, inputs, None)


def _checkpoint(name: str, loading: dict[str, Any]) -> Subject:
    import seewhen
    from seewhen.backbones.prompts import chat_prompt, model_inputs
    from seewhen.scenes import dataset, render

    model, processor = seewhen.load(name, **loading)

    def inputs(batch: int, images: int) -> Mapping[str, Any]:
        scenes = dataset("shifted", batch)
        prompt = chat_prompt(processor, DESCRIBE, images)
        pictures = [[render(scene)] * images for scene in scenes]
        return model_inputs(model, processor, pictures, [prompt] * batch)

    return Subject(name, model, inputs, processor.tokenizer)


def _result(subject: Subject, found: list[Cost], left_out: Mapping[str, str]) -> dict[str, Any]:
    import torch

    device = next(subject.model.parameters()).device
    return {
        "model": subject.name,
        "command": "seewhen " + " ".join(sys.argv[1:]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "dtype": str(subject.model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "read_bandwidth": read_bandwidth(device),
        "machine": machine_facts(),
        "costs": [cost.to_json() for cost in found],
        "interval_holds_the_median": interval(found[0].rounds)[2] if found else None,
        "red_flags": red_flags(found),
        "left_out": dict(left_out),
    }


def cells(cost: Cost, ranges: bool = True) -> tuple[str, ...]:
    """A row of the table, with the fastest and slowest round if `ranges`."""
    return (
        cost.method,
        cost.way,
        str(cost.batch),
        str(cost.image_tokens),
        f"{cost.prefill_ms:.1f}" + ("" if not ranges or not cost.prefills else _range(cost.prefills, 1)),
        f"{cost.ms_per_token:.2f}" + (_range(cost.rounds, 2) if ranges else ""),
        f"{cost.tokens_per_second:.0f}",
        _ratio(cost),
        f"{100 * cost.floor_share:.0f} %",
        ""
        if cost.peak_bytes is None
        else f"{cost.peak_bytes / 1e9:.2f} GB"
        + ("" if cost.memory_ratio is None else f" ({cost.memory_ratio:.3f})"),
    )


def _range(values: tuple[float, ...], places: int) -> str:
    return f" ({min(values):.{places}f}-{max(values):.{places}f})"


def _ratio(cost: Cost) -> str:
    if cost.ratio is None or cost.method == "regular":
        return "" if cost.ratio is None else "1"
    if len(cost.rounds) == 1:
        return f"{cost.ratio:.3f}"
    return f"{cost.ratio:.3f} ({cost.ratio_low:.3f}-{cost.ratio_high:.3f})"


def red_flags(found: Iterable[Cost]) -> list[str]:
    """What cannot be, such as more rows in less time, and ratios of unlike things."""
    return [
        f"{cost.method}, {cost.way}, batch {cost.batch}: {why}" for cost in found for why in cost.suspicions
    ] + [f"{cost.method}, batch {cost.batch}: {note}" for cost in found for note in cost.notes]


def as_markdown(found: Iterable[Cost]) -> str:
    """The table as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    found = list(found)
    lines += ["| " + " | ".join(cells(cost)) + " |" for cost in found]
    return "\n".join([*lines, *(f"\nRed flag: {flag}" for flag in red_flags(found))]) + "\n"


def write(prefix: Path, result: Mapping[str, Any], found: list[Cost]) -> None:
    """PREFIX.json, PREFIX.md and PREFIX.png."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(result, indent=1) + "\n"), (".md", as_markdown(found))):
        whole(prefix.with_name(prefix.name + suffix), text)
    from seewhen.speed.figure import speed

    with replacing(prefix.with_name(prefix.name + ".png")) as partial:
        speed(found, str(result["model"])).savefig(partial, dpi=150, format="png")
