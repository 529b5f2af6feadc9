"""`seewhen view`: the page of a saved trace, or of the answers of a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from seewhen.cli.options import ModelFlags, OpenPage, RunData, RunImages, between_commas, check_writable
from seewhen.errors import InvalidInput


def view(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE|RUN...", help="Traces, folders of traces, or run directories; several: side by side."
        ),
    ],
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: beside the first of TRACE or RUN.")
    ] = None,
    open_: OpenPage = True,
    image: Annotated[
        list[Path] | None, typer.Option("--image", help="Of traces: the picture, if it is not where it was.")
    ] = None,
    objects: Annotated[
        str | None, typer.Option("--objects", help="Of traces: what the picture shows, as in dog,person.")
    ] = None,
    sample: Annotated[
        list[str] | None, typer.Option("--sample", help="Of runs: this sample (its id); may be repeated.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Of runs: so many answers, those with mistakes first.")
    ] = 24,
    seed: Annotated[int, typer.Option("--seed", help="Of runs that sampled: answers with this seed.")] = 0,
    data: RunData = None,
    images: RunImages = None,
    scenes: Annotated[
        int | None, typer.Option("--scenes", min=1, help="Of runs over scenes: how many, if it cannot tell.")
    ] = None,
    model: ModelFlags,
) -> None:
    """Show where each word looked: the page of a saved trace, or of the answers of a run.

    A run keeps no traces: its answers are fed through its model and method again. Answers with mistakes come
    first; the page has a list of all, with a search.

    seewhen view trace.json

    seewhen view traces/regular.json traces/cai.json --out side-by-side.html

    seewhen view runs/chair_shifted_packaged_regular_greedy_1a2b3c runs/chair_shifted_packaged_cai_greedy_4d5e6f

    seewhen view runs/pope_test_packaged_cai_greedy_4d5e6f --sample test-random/7 --no-open
    """
    target = out or _beside(paths[0])
    check_writable(target)
    kinds = {_kind(path) for path in paths}
    if len(kinds) > 1:
        raise InvalidInput("Traces and runs do not go together.", "View them one by one.")
    if kinds == {"run"}:
        _refuse({"--image": image, "--objects": objects}, "a run")
        payload = _runs(paths, sample or [], limit, seed, data, images, scenes, model)
    else:
        _refuse({"--sample": sample, "--data": data, "--images": images, "--scenes": scenes}, "a trace")
        payload = _traces(paths, image or [], objects)
    from seewhen.showing.viewer.page import write_page

    write_page(target, payload)
    typer.echo(target)
    if open_:
        open_page(target)


def _kind(path: Path) -> str:
    if not path.exists() and not path.with_name(path.name + ".json").exists():
        raise InvalidInput(f"{path} does not exist.", "Give a trace (`describe --trace`) or a run directory.")
    if not path.is_dir():
        return "trace"
    from seewhen.showing.viewer.traces import traces_in

    if (path / "manifest.json").exists():
        return "run"
    if traces_in(path):
        return "trace"
    inside = sorted(found.parent.name for found in path.glob("*/manifest.json"))
    if inside:
        some = ", ".join(inside[:3]) + (", ..." if len(inside) > 3 else "")
        raise InvalidInput(f"{path} holds {len(inside)} runs.", f"Name one or some of them: {some}")
    raise InvalidInput(f"{path} holds neither a run nor a trace.", "Runs are made by `seewhen eval`.")


def _beside(path: Path) -> Path:
    """In the run, beside the trace; in a temporary folder where that cannot be written to."""
    import os
    import tempfile

    folder = path if path.is_dir() else path.parent
    name = "view.html" if path.is_dir() else f"{path.stem}.html"
    if os.access(folder, os.W_OK):
        return folder / name
    return Path(tempfile.mkdtemp(prefix="seewhen-")) / name


def _refuse(given: dict[str, Any], what: str) -> None:
    for flag, value in given.items():
        if value:
            raise InvalidInput(f"{flag} says nothing about {what}.", "Leave it out.")


def _traces(paths: Sequence[Path], image: Sequence[Path], objects: str | None) -> dict[str, Any]:
    from seewhen.backbones.pictures import open_image
    from seewhen.decoding.trace import Trace
    from seewhen.showing.viewer.payload import Truth
    from seewhen.showing.viewer.traces import count_pictures, own_pictures, traces_in, traces_page

    files = [file for path in paths for file in traces_in(path)]
    traces = [Trace.load(file) for file in files]
    truth = None if objects is None else Truth(between_commas(objects))
    wanted = count_pictures(traces[0])
    if image and len(image) != wanted:
        raise InvalidInput(
            f"The trace is about {wanted} picture{'s' * (wanted != 1)}, not {len(image)}.",
            "Give --image once for each, in their order.",
        )
    pictures = [open_image(path) for path in image] or own_pictures(traces[0])
    known = Path(str(traces[0].meta.get("image", "")))
    if not pictures and wanted == 1 and known.is_file():
        pictures = [open_image(known)]
    elif not pictures and wanted:
        sys.stderr.write("note: the trace's picture is not known; give it with --image\n")
    names = [path.name for path in image] or [known.name] * len(pictures)
    return traces_page(traces, _labels(traces, files), pictures, names, truth)


def _labels(traces: Sequence[Any], files: Sequence[Path]) -> list[str]:
    """What tells the answers apart: their methods, or their files where those are the same."""
    from seewhen.decoding.naming import name_in

    methods = [str(trace.meta.get("label") or name_in(trace.method)) for trace in traces]
    for labels in (methods, [file.stem for file in files]):
        if len(set(labels)) == len(labels):
            return labels
    return [str(file) for file in files]


def _runs(
    paths: Sequence[Path],
    wanted: Sequence[str],
    limit: int,
    seed: int,
    data: Path | None,
    images: Path | None,
    scenes: int | None,
    model: ModelFlags,
) -> dict[str, Any]:
    from seewhen.asking.opening import open_model
    from seewhen.runs.progress import Progress
    from seewhen.showing.viewer.payload import FORMAT
    from seewhen.showing.viewer.runs import RunPages, questions_of, read_runs, shown_of

    runs = read_runs(paths)
    questions = questions_of(runs[0], data, images, scenes)
    everything = shown_of(runs, questions, seed)
    if not everything:
        raise InvalidInput(f"There is no answer with seed {seed} that all of them have.", "Try --seed 0.")
    if wanted:
        by_id = {each.id: each for each in everything}
        missing = next((id_ for id_ in wanted if id_ not in by_id), None)
        if missing is not None:
            raise InvalidInput(f"There is no answer to {missing!r}.", f"Ids look like {everything[0].id}.")
        chosen = [by_id[id_] for id_ in dict.fromkeys(wanted)]
    else:
        chosen = everything[:limit]

    def load(name: str) -> Any:
        own = model.model == ModelFlags.model
        return open_model(name if own else model.model, model.loading())

    pages = RunPages(runs, questions, load)
    for note in pages.notes:
        sys.stderr.write(f"note: {note}\n")
    with Progress("looking again", len(chosen), stream=sys.stderr) as bar:
        samples = []
        for each in chosen:
            samples.append(pages.page(each))
            bar.advance(1)
    if len(samples) == 1:
        return samples[0]
    bad = sum(each.wrong > 0 for each in everything)
    rest = f"{len(everything)} questions, {bad} with mistakes in the answers."
    if len(samples) < len(everything):
        rest += f" Here are {len(samples)} of them; for others use --limit, or --sample with an id."
    return {"format": FORMAT, "samples": samples, "rest": rest}


def open_page(path: Path) -> None:
    """In the browser of whoever called."""
    import webbrowser

    if not webbrowser.open(path.absolute().as_uri()):
        sys.stderr.write("note: no browser was found; open the page yourself\n")
