"""`seewhen figure`: every figure of the paper, from a trace, a run, a sweep, or scenes drawn on the spot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from seewhen.cli.options import ModelFlags, Settings, between_commas, check_writable
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from PIL import Image

    from seewhen.decoding.trace import Trace
    from seewhen.showing.figures.cases import Case
    from seewhen.showing.figures.catalogue import Entry

_ONE, _MANY = 24, 60  # scenes, unless said: to find a telling answer in, or to measure on


def figure(
    name: Annotated[
        str, typer.Argument(help="Which figure; `seewhen figure list` shows them.", show_default=False)
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File ending in .png, .svg or .pdf. Default: NAME.png")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", help="File for the numbers. Default: beside the figure, .json")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", help="Draw this trace (`seewhen describe --trace FILE`).")
    ] = None,
    image: Annotated[
        Path | None, typer.Option("--image", help="With --trace: its picture, if the trace has none.")
    ] = None,
    objects: Annotated[
        str | None, typer.Option("--objects", help="With --trace: what the picture shows, as in dog,person.")
    ] = None,
    run: Annotated[
        Path | None, typer.Option("--run", help="A run of chair (`seewhen eval`), or a folder of `seewhen sweep`.")
    ] = None,
    images: Annotated[Path | None, typer.Option("--images", help="With --run: folder of its pictures.")] = None,
    annotations: Annotated[
        str | None, typer.Option("--annotations", help="With --run: folder of COCO's annotations.")
    ] = None,
    scenes: Annotated[
        int | None, typer.Option("--scenes", min=1, help="Ask about so many scenes now (24 or 60 unless said).")
    ] = None,
    split: Annotated[str, typer.Option("--split", help="Part of the scenes: val, test or shifted.")] = "shifted",
    method: Annotated[
        str | None, typer.Option("--method", "-M", help="With --scenes: a method, as in cai:contrast=3.")
    ] = None,
    settings: Settings = None,
    against: Annotated[
        str | None, typer.Option("--against", help="case, caption: method to compare with; `none` for none.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="With --scenes: sample; greedy unless given.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="With --run: use so many of its answers.")] = 60,
    index: Annotated[
        int | None, typer.Option("--index", help="Which answer (from 0); else the most telling one.")
    ] = None,
    words: Annotated[
        str | None, typer.Option("--words", help="Words of the answer, as in dog,person; dog#2: the second.")
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="layers: source layers; similarity, case: the layer shown.")
    ] = None,
    head: Annotated[int | None, typer.Option("--head", min=0, help="case: one head; else their mean.")] = None,
    dpi: Annotated[int, typer.Option("--dpi", min=30, max=1200, help="Dots per inch of PNG.")] = 200,
    model: ModelFlags,
) -> None:
    """Draw a figure and write the numbers behind it.

    seewhen figure pointing --scenes 60 --out pointing.pdf

    seewhen figure similarity --trace t.json --image photo.jpg --words dog,person

    seewhen figure case --method cai:start_layer=0.5 --head 0 --layers 11

    seewhen figure ablation-gate --run sweep --out gate.svg
    """
    from seewhen.methods.grammar import check
    from seewhen.showing.figures import catalogue, style

    check([each for each in (method, against) if each not in (None, "none")], settings or [])
    if name == "list":
        for each, entry in catalogue.FIGURES.items():
            typer.echo(f"{each:18} {entry.summary} (from {entry.of})")
        return
    entry = catalogue.figure_named(name)
    out = out or Path(f"{name}.png")
    style.check_target(out)
    numbers = data or out.with_suffix(".json")
    check_writable(out)
    check_writable(numbers)
    if trace is not None and numbers.resolve() == trace.with_suffix(".json").resolve():
        raise InvalidInput("The numbers would overwrite the trace.", "Give another --out, or --data.")
    style.need_matplotlib()
    if sum(given is not None for given in (trace, run, scenes)) > 1:
        raise InvalidInput("--trace, --run and --scenes exclude each other.", "Give one of them.")
    wish = catalogue.Wish(between_commas(words), tuple(_numbers(layers)), head)
    if entry.of == "sweep":
        from seewhen.showing.figures.ablations import read_sweep

        if run is None:
            raise InvalidInput(f"{name} is drawn from a sweep.", "Give its folder with --run.")
        drawing = entry.draw(read_sweep(run), wish)
    elif trace is not None:
        case = _traced(trace, image, objects, index or 0)
        drawing = entry.draw(case if entry.of == "answer" else [case], wish)
    else:
        source = _Source(model, head, wish.layers)
        if run is not None:
            cases = source.of_run(run, limit, images, annotations)
        else:
            count = scenes or (_ONE if entry.of == "answer" else _MANY)
            cases = source.of_scenes(count, split, method or entry.method, settings or [], seed)
        drawing = _from_cases(entry, cases, wish, index, against, source)
    for path in style.save(drawing, out, numbers, dpi=dpi):
        typer.echo(path)


def _from_cases(
    entry: Entry, cases: list[Case], wish: Any, index: int | None, against: str | None, source: _Source
) -> Any:
    from dataclasses import replace

    from seewhen.showing.figures.catalogue import most_telling

    if entry.of == "answers":
        return entry.draw(cases, wish)
    case = most_telling(entry, cases, index)
    rival = against if against is not None else entry.against
    if rival not in (None, "none") and entry.against is not None:
        wish = replace(wish, against=source.rival(case, str(rival), same_words="gate" in case.trace.tensors))
    return entry.draw(case, wish)


class _Source:
    """The model behind --scenes and --run, loaded once."""

    def __init__(self, model: ModelFlags, head: int | None, layers: tuple[int, ...]) -> None:
        self._flags, self._head, self._layers = model, head, layers
        self._tracer: Any = None

    def _load(self, model: ModelFlags) -> Any:
        from seewhen.asking.opening import open_model
        from seewhen.showing.figures.tracing import Tracer

        self._tracer = Tracer.of(open_model(model.model, model.loading()))
        if self._head is not None:
            import dataclasses

            kept = self._layers or self._tracer.asker.backbone.softmax_layers
            self._tracer = dataclasses.replace(self._tracer, head_layers=kept)
        return self._tracer

    def of_scenes(self, count: int, split: str, method: str, settings: list[str], seed: int | None) -> list[Case]:
        from seewhen.methods.grammar import choose
        from seewhen.runs.progress import Progress
        from seewhen.scenes import SPLITS, dataset
        from seewhen.showing.figures.tracing import trace_scenes

        if split not in SPLITS:
            raise InvalidInput(f"There is no part {split!r} of the scenes.", f"Use one of {', '.join(SPLITS)}.")
        (chosen,) = choose([method], settings)
        pictures = dataset(split, count)
        tracer = self._load(self._flags)
        with Progress(f"{method} on {split} scenes", count, stream=sys.stderr) as bar:
            return trace_scenes(tracer, pictures, chosen, seed=seed, tick=bar.advance)

    def of_run(self, path: Path, limit: int, images: Path | None, annotations: str | None) -> list[Case]:
        from dataclasses import replace

        from seewhen.runs.progress import Progress
        from seewhen.runs.store import check_run, read_run
        from seewhen.showing.figures.tracing import trace_run

        made = check_run(read_run(path))
        records = [record for record in made.records if not record.error and record.seed == 0]
        truth: Any = None
        if annotations is not None:
            from seewhen.benchmarks import load

            truth = load(made.config["benchmark"]["name"], annotations).shown
        flags = self._flags
        if flags.model == ModelFlags.model:  # the run's own, loaded as it was
            own = made.config["model"]
            flags = replace(
                flags,
                model=own["name"],
                revision=flags.revision or own.get("revision"),
                quantization=flags.quantization or own.get("quantization", {}).get("bits"),
                adapter=flags.adapter or own.get("adapter", {}).get("name"),
            )
        tracer = self._load(flags)
        with Progress(f"answers of {path.name}", min(limit, len(records)), stream=sys.stderr) as bar:
            return trace_run(tracer, path, limit=limit, images=images, truth=truth, tick=bar.advance)

    def rival(self, case: Case, method: str, same_words: bool) -> Case:
        """The same words (for a method with a gate) or the same question, with another method."""
        from seewhen.methods import method as make_method
        from seewhen.showing.figures.tracing import answered, replayed

        chosen = make_method(method)
        return replayed(self._tracer, case, chosen) if same_words else answered(self._tracer, [case], chosen)[0]


def _traced(path: Path, image: Path | None, objects: str | None, row: int) -> Case:
    from seewhen.decoding.trace import Trace
    from seewhen.showing.figures.cases import case_of, scene_case

    trace = Trace.load(path)
    if image is not None and str(image).startswith("scene:"):
        from dataclasses import replace

        from seewhen.scenes import scene_named

        return replace(scene_case(scene_named(str(image).removeprefix("scene:")), trace=trace), row=row)
    from seewhen.backbones.pictures import open_image

    picture = _own_picture(trace, row) if image is None else open_image(image)
    named = None if objects is None else between_commas(objects)
    return case_of(trace, picture, objects=named, row=row, name="" if image is None else image.name)


def _own_picture(trace: Trace, row: int) -> Image.Image | None:
    """The picture that travels with the trace, if one does: the first of this answer."""
    from seewhen.showing.viewer.traces import own_pictures

    own = own_pictures(trace)
    if not 0 <= row < trace.rows or not own or not trace.pictures_in(row):
        return None
    return own[sum(map(trace.pictures_in, range(row)))]


def _numbers(text: str | None) -> list[int]:
    try:
        return [int(part) for part in between_commas(text)]
    except ValueError:
        raise InvalidInput(f"{text!r} is not a list of layers.", "Write them as in 0,4,11.") from None
