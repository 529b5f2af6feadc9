"""The work of `seewhen bench`: builds the inputs, measures, shows and writes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seewhen.atomic import replacing
from seewhen.checkup import machine_facts
from seewhen.cli.bench import WITH_CONTRAST
from seewhen.errors import InvalidInput
from seewhen.methods import method as make_method
from seewhen.methods import method_names
from seewhen.methods.base import Method
from seewhen.speed import check
from seewhen.speed.measure import Cost, costs, read_bandwidth

_COLUMNS = (
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
    names: list[str],
    *,
    batches: list[int],
    images: list[int],
    ways: list[str],
    tokens: int,
    repeats: int,
    directions: Mapping[str, str],
    out: Path | None,
    as_json: bool,
    loading: Mapping[str, Any],
) -> None:
    """Measure, then print the table or JSON, and write files where asked."""
    from rich.console import Console

    for way in ways:
        check(way)
    chosen, left_out = _methods(names, directions)
    subject = _subject(model, dict(loading))
    chosen = _prepared(chosen, subject, left_out)
    found: list[Cost] = []
    console = Console(stderr=True)
    with console.status("") as status:
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
                    progress=lambda text, way=way: status.update(f"{way}, {text}"),  # type: ignore[misc]
                )
                found += more
                left_out |= failures
    result = _result(subject, found, left_out)
    if out is not None:
        _write(out, result, found)
    if as_json:
        print(json.dumps(result, indent=1))
        return
    _show(found, left_out, result)


def _subject(name: str, loading: dict[str, Any]) -> Subject:
    import torch

    from seewhen.shapes import is_shape, random_inputs, random_model, shape_config

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
    from seewhen.answering import chat_prompt, model_inputs
    from seewhen.scenes import dataset, render

    model, processor = seewhen.load(name, **loading)

    def inputs(batch: int, images: int) -> Mapping[str, Any]:
        scenes = dataset("shifted", batch)
        prompt = chat_prompt(processor, "Please describe this image in detail.", images)
        pictures = [[render(scene)] * images for scene in scenes]
        return model_inputs(model, processor, pictures, [prompt] * batch)

    return Subject(name, model, inputs, processor.tokenizer)


def _methods(names: Iterable[str], directions: Mapping[str, str]) -> tuple[dict[str, Method], dict[str, str]]:
    """The methods by name, `regular` first, and those that cannot run here with the reason."""
    wanted = list(names)
    if wanted == ["all"]:
        wanted = [name for name in method_names() if name != "cai-gla"]
        wanted.insert(wanted.index("cai") + 1, WITH_CONTRAST)
    found: dict[str, Method] = {}
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(["regular", *wanted]):
        if name in ("vti", "ict") and name not in directions:
            left_out[name] = f"needs directions: --directions {name}=FILE, from `seewhen calibrate {name}`"
            continue
        if name in directions:
            found[name] = make_method(name, directions=directions[name])
        else:
            found[name] = make_method("cai", contrast=3.0) if name == WITH_CONTRAST else make_method(name)
    return found, left_out


def _prepared(methods: Mapping[str, Method], subject: Subject, left_out: dict[str, str]) -> dict[str, Method]:
    """The methods with what only the model's tokenizer can tell them."""
    if subject.tokenizer is not None:
        return {name: method.prepare(subject.tokenizer) for name, method in methods.items()}
    if "icd" in methods:
        left_out["icd"] = "needs a tokenizer, and a shape has none"
    return {name: method for name, method in methods.items() if name != "icd"}


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
        "left_out": dict(left_out),
    }


def _cells(cost: Cost, ranges: bool = True) -> tuple[str, ...]:
    low, high = min(cost.rounds), max(cost.rounds)
    return (
        cost.method,
        cost.way,
        str(cost.batch),
        str(cost.image_tokens),
        f"{cost.prefill_ms:.1f}",
        f"{cost.ms_per_token:.2f}" + (f" ({low:.2f}-{high:.2f})" if ranges else ""),
        f"{cost.tokens_per_second:.0f}",
        "" if cost.ratio is None else f"{cost.ratio:.3f}",
        f"{100 * cost.floor_share:.0f} %",
        ""
        if cost.peak_bytes is None
        else f"{cost.peak_bytes / 1e9:.2f} GB"
        + ("" if cost.memory_ratio is None else f" ({cost.memory_ratio:.3f})"),
    )


def _show(found: list[Cost], left_out: Mapping[str, str], result: Mapping[str, Any]) -> None:
    from rich.table import Table

    from seewhen.cli.tables import table_console

    # Memory comes last, and is measured on GPUs only.
    columns = _COLUMNS if any(cost.peak_bytes is not None for cost in found) else _COLUMNS[:-1]
    table = Table(title=f"{result['model']}, {result['dtype']}, {result['device']}")
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for cost in found:
        table.add_row(*_cells(cost, ranges=False)[: len(columns)])
    console = table_console()
    console.print(table)
    rate = result["read_bandwidth"] / 1e9
    console.print(
        "Ratio: to regular, same batch, same round. Floor: time to read weights and cache once at the "
        f"{rate:.0f} GB/s that this device reads, as a share of the measured time."
    )
    for name, why in left_out.items():
        console.print(f"Left out: {name}: {why}")


def as_markdown(found: Iterable[Cost]) -> str:
    """The table as Markdown."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + "---|" * len(_COLUMNS)]
    return "\n".join([*lines, *("| " + " | ".join(_cells(cost)) + " |" for cost in found)]) + "\n"


def _write(prefix: Path, result: Mapping[str, Any], found: list[Cost]) -> None:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(result, indent=1) + "\n"), (".md", as_markdown(found))):
        with replacing(prefix.with_name(prefix.name + suffix)) as partial:
            Path(partial).write_text(text, encoding="utf-8")
    from seewhen.figures.speed import speed

    with replacing(prefix.with_name(prefix.name + ".png")) as partial:
        speed(found, str(result["model"])).savefig(partial, dpi=150, format="png")
