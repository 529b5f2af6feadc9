"""`seewhen eval`: a benchmark with a model and a method, resumable, with controls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.benchmarks import BENCHMARKS
from seewhen.cli.options import MethodsOrDefault, Settings, check_folder, usable
from seewhen.cli.run_flags import (
    AskFlags,
    Controls,
    MachineFlags,
    ServedRunFlags,
    ask_of,
    captured,
    machine_of,
)
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.benchmarks.base import Benchmark
    from seewhen.decoding.method import Method
    from seewhen.runs.evaluate import Ask, Machine


def eval_command(
    bench: Annotated[
        str,
        typer.Argument(metavar="BENCH", help=f"{', '.join(BENCHMARKS.built_in)}, or your own; several by comma."),
    ],
    *,
    method: MethodsOrDefault = None,
    settings: Settings = None,
    controls: Controls = True,
    greedy: Annotated[bool, typer.Option("--greedy", help="With --seeds: greedy as well.")] = False,
    out: Annotated[Path, typer.Option(help="Folder in which each run gets a directory.")] = Path("runs"),
    run: Annotated[Path | None, typer.Option(help="This very directory instead; implies --no-controls.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="Ask samples again that have no answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
    asked: AskFlags,
    model: ServedRunFlags,
    machine: MachineFlags,
) -> None:
    """Evaluate a method on a benchmark. Stop it at any time; the same command goes on.

    seewhen eval pope --split test --scenes 100

    seewhen eval chair --method cai:paper --seeds 5 --out runs

    seewhen eval pope,chair,mme --method all --split test,shifted --greedy --seeds 5

    seewhen eval pope --data ~/pope --images ~/coco/val2014 --split coco --model llava-hf/llava-1.5-7b-hf

    seewhen eval mme --engine ray --ray-address auto

    seewhen eval chair --data ~/coco --model llava-hf/llava-1.5-13b-hf --quantization 4bit
    """
    from seewhen.methods.grammar import check, choose, split_methods

    # What is wrong is found before torch is imported, as far as it can be.
    names = split_methods(model.default("cai", served="confirm") if method is None else method)
    check(names, settings or [])
    check_folder(run or out)
    asks = _asks(ask_of(bench, asked, model), greedy)
    for ask in asks:
        ask.check()
    benchmarks = [ask.load() for ask in asks]
    computer = machine_of(machine, model)
    methods = choose(names, settings or [])
    asks = [captured(ask, asked, model) for ask in asks]
    if run and (len(asks) > 1 or len(methods) > 1):
        raise InvalidInput("--run names one directory for one run.", "Use --out for several.")
    everything: list[dict[str, Any]] = []
    for ask, benchmark in zip(asks, benchmarks, strict=True):
        found = _evaluate(ask, benchmark, methods, computer, controls and not run, out, run, retry_failed)
        everything += found
        if not as_json:
            _show(ask, found)
    if as_json:
        from seewhen.cli.output import print_json

        print_json(everything, indent=1)
    else:
        typer.echo(f"Compare: seewhen report {run or out} --out report")


def _asks(common: Ask, greedy: bool) -> list[Ask]:
    """One for each benchmark, part and way of decoding."""
    # The packaged scenes have parts of their own; those of published files belong to one benchmark.
    parts = (common.split or "test").split(",") if common.data == "scenes" else [common.split]
    modes = [None, common.seeds] if greedy and common.seeds else [common.seeds]
    return [
        replace(common, benchmark=bench.strip(), split=part, seeds=seeds)
        for bench in common.benchmark.split(",")
        for part in parts
        for seeds in modes
    ]


def _evaluate(
    ask: Ask,
    benchmark: Benchmark,
    methods: list[Method],
    machine: Machine,
    controls: bool,
    out: Path,
    run: Path | None,
    retry_failed: bool,
) -> list[dict[str, Any]]:
    from seewhen.methods.grammar import label
    from seewhen.runs.evaluate import evaluate, model_facts
    from seewhen.runs.light_model import LightModel

    prepared = (benchmark, model_facts(ask, machine.device))
    model = LightModel.of(ask)
    wanted: dict[str, Method] = {}
    for method in usable(methods, model.check):
        wanted |= {each.fingerprint: each for each in (model.with_controls(method) if controls else [method])}
    found: list[dict[str, Any]] = []
    for each in wanted.values():
        path, result = evaluate(
            ask, each, out, machine, directory=run, retry_failed=retry_failed, prepared=prepared
        )
        found.append({"method": label(each), "run": str(path), "result": result})
    return found


def _show(ask: Ask, found: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from seewhen.cli.tables import table_console
    from seewhen.runs import wording

    if not found:
        return
    metrics = found[0]["result"]["metrics"]
    names = [name for name in metrics if "/" not in name][:6] or list(metrics)[:6]
    decoding = wording.counted(ask.seeds, "seed") if ask.seeds else "greedy"
    table = Table(title=" ".join(filter(None, (ask.benchmark, ask.split, decoding))))
    for name in ("method", *names):
        table.add_column(name, overflow="fold")
    for entry in found:
        shown = [wording.measured(entry["result"]["metrics"][name]) for name in names]
        table.add_row(wording.title(entry["method"]), *shown)
    console = table_console()
    console.print(table)
    for entry in found:
        if wording.silent(entry["result"]):
            console.print(wording.never_fired(entry["method"]), markup=False)
    failures = sum(entry["result"]["failures"] for entry in found)
    if failures:
        first = next(e["result"]["first_failure"] for e in found if e["result"]["first_failure"])
        console.print(f"{wording.unanswered(failures)}, the first because: {first}", markup=False)
