"""`seewhen eval`: a benchmark with a model and a method, resumable, with controls."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.errors import InvalidInput, InvalidMethod, UnsupportedMode, UnsupportedModel

if TYPE_CHECKING:
    from seewhen.methods.base import Method
    from seewhen.runs.evaluate import Ask, Machine

# Options that `eval` and `sweep` share.
Bench = Annotated[str, typer.Argument(metavar="BENCH", help="pope, chair, mme or amber.")]
Model = Annotated[str, typer.Option("--model", help="Hub id, checkpoint directory, or 'packaged'.")]
Revision = Annotated[str | None, typer.Option(help="Revision of a hub model.")]
Data = Annotated[str, typer.Option(help="Folder with the benchmark's files, or 'scenes' (needs no files).")]
Images = Annotated[str | None, typer.Option(help="Folder with the pictures; the data folder unless given.")]
ImageList = Annotated[str | None, typer.Option(help="CHAIR: a packaged list of images, or a file of ids.")]
Split = Annotated[str | None, typer.Option(help="Parts, by comma: coco-random; existence; test, shifted-popular.")]
Style = Annotated[str | None, typer.Option(help="Prompt style; see docs/benchmarks.md.")]
ParserName = Annotated[str | None, typer.Option("--parser", help="Answer parser.")]
Lemmatizer = Annotated[str, typer.Option(help="CHAIR and AMBER: offline or nltk.")]
Scenes = Annotated[int, typer.Option(help="How many packaged scenes.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N samples (those of one image come together).")]
Batch = Annotated[int, typer.Option(help="Samples answered together; halved when memory runs out.")]
Seeds = Annotated[int | None, typer.Option(help="Sample with this many seeds; without it decoding is greedy.")]
Temperature = Annotated[float, typer.Option(help="Of sampling.")]
MaxNewTokens = Annotated[int | None, typer.Option(help="Instead of the prompt style's own.")]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16, float16.")]
Attention = Annotated[str | None, typer.Option(help="Attention kernel of the model, e.g. sdpa or eager.")]
Device = Annotated[str | None, typer.Option(help="One or several by comma: cpu, cuda:0,cuda:1.")]
Engine = Annotated[str, typer.Option(help="local or ray.")]
RayAddress = Annotated[str | None, typer.Option(help="Of a Ray cluster; one is started here if not given.")]
Workers = Annotated[int | None, typer.Option(help="Ray: number of workers, one per GPU unless given.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A parameter of the method: --set contrast=3")]
Controls = Annotated[bool, typer.Option(help="Also run regular, min-p, attention only, contrast only.")]


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("eval")(eval_command)


def eval_command(
    bench: Annotated[str, typer.Argument(metavar="BENCH", help="pope, chair, mme, amber; several by comma.")],
    model: Model = "packaged",
    method: Annotated[
        str, typer.Option(help="A method, with preset if wanted (cai:paper, cai+vcd); several by comma; all.")
    ] = "cai",
    parameters: Set = None,
    data: Data = "scenes",
    images: Images = None,
    image_list: ImageList = None,
    split: Split = None,
    style: Style = None,
    parser: ParserName = None,
    lemmatizer: Lemmatizer = "offline",
    scenes: Scenes = 500,
    limit: Limit = None,
    batch: Batch = 24,
    seeds: Seeds = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="With --seeds: greedy as well.")] = False,
    temperature: Temperature = 1.0,
    max_new_tokens: MaxNewTokens = None,
    revision: Revision = None,
    dtype: Dtype = "auto",
    attention: Attention = None,
    device: Device = None,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    workers: Workers = None,
    controls: Controls = True,
    out: Annotated[Path, typer.Option(help="Folder in which each run gets a directory.")] = Path("runs"),
    run: Annotated[Path | None, typer.Option(help="This very directory instead; implies --no-controls.")] = None,
    retry_failed: Annotated[bool, typer.Option(help="Ask samples again that have no answer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Evaluate a method on a benchmark. Stop it at any time; the same command goes on.

    seewhen eval pope --split test --scenes 100

    seewhen eval chair --method cai:paper --seeds 5 --out runs

    seewhen eval pope,chair,mme --method all --split test,shifted --greedy --seeds 5

    seewhen eval pope --data ~/pope --images ~/coco/val2014 --split coco --model llava-hf/llava-1.5-7b-hf

    seewhen eval mme --engine ray --ray-address auto
    """
    from seewhen.runs.evaluate import Ask, Machine

    common = Ask(
        bench,
        data=data,
        split=split,
        style=style,
        parser=parser,
        lemmatizer=lemmatizer,
        image_list=image_list,
        images=images,
        scenes=scenes,
        limit=limit,
        seeds=seeds,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        model=model,
        revision=revision,
        dtype=dtype,
        attention=attention,
        batch=batch,
    )
    machine = Machine(engine, device.split(",") if device else (), workers, ray_address)
    methods = make_methods(method, parameters)
    asks = _asks(common, greedy)
    if run and (len(asks) > 1 or len(methods) > 1):
        raise InvalidInput("--run names one directory for one run.", "Use --out for several.")
    for ask in asks:
        found = _evaluate(ask, methods, machine, controls and not run, out, run, retry_failed)
        if as_json:
            typer.echo(json.dumps(found, ensure_ascii=False, indent=1))
        else:
            _show(ask, found)
    if not as_json:
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
    methods: list[Method],
    machine: Machine,
    controls: bool,
    out: Path,
    run: Path | None,
    retry_failed: bool,
) -> list[dict[str, Any]]:
    from seewhen.runs.controls import label, with_controls
    from seewhen.runs.evaluate import check_method, evaluate, light_backbone, model_facts

    prepared = (ask.load(), model_facts(ask, machine.device))
    backbone = light_backbone(ask)
    wanted: dict[str, Method] = {}
    for method in methods:
        try:
            check_method(ask, method, backbone)
        except (InvalidMethod, UnsupportedMode, UnsupportedModel) as error:
            if len(methods) == 1:
                raise
            typer.echo(f"{label(method)} is left out: {error}", err=True)
            continue
        for each in with_controls(method, backbone) if controls else [method]:
            wanted[each.fingerprint] = each
    found: list[dict[str, Any]] = []
    for each in wanted.values():
        path, result = evaluate(
            ask, each, out, machine, directory=run, retry_failed=retry_failed, prepared=prepared
        )
        found.append({"method": label(each), "run": str(path), "result": result})
    return found


def make_methods(names: str, parameters: list[str] | None) -> list[Method]:
    """The methods named, with parameters given as name=value."""
    from seewhen.methods import method, method_names
    from seewhen.runs.sweep import SYMBOLS, parse_value

    values = {}
    for text in parameters or []:
        field, _, value = text.partition("=")
        values[SYMBOLS.get(field.strip(), field.strip())] = parse_value(value)
    chosen = method_names() if names == "all" else tuple(name.strip() for name in names.split(","))
    if values and len(chosen) > 1:
        raise InvalidInput("--set belongs to one method, but several are named.", "Run them one by one.")
    made = [method(name) for name in chosen]
    return [made[0].replace(**values)] if values else made


def _show(ask: Ask, found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from seewhen.runs import words

    if not found:
        return
    metrics = found[0]["result"]["metrics"]
    names = [name for name in metrics if "/" not in name][:6] or list(metrics)[:6]
    decoding = f"{ask.seeds} seeds" if ask.sampled else "greedy"
    table = Table("method", *names, title=f"{ask.benchmark} {ask.split or ''} {decoding}")
    for entry in found:
        shown = [words.measured(entry["result"]["metrics"][name]) for name in names]
        table.add_row(words.title(entry["method"]), *shown)
    console = Console()
    console.print(table)
    for entry in found:
        if words.silent(entry["result"]):
            console.print(words.never_fired(entry["method"]), markup=False)
    failures = sum(entry["result"]["failures"] for entry in found)
    if failures:
        first = next(e["result"]["first_failure"] for e in found if e["result"]["first_failure"])
        console.print(f"{failures} samples have no answer, the first because: {first}", markup=False)
