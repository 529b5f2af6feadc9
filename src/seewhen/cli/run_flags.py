"""The flags of `seewhen eval` and `seewhen sweep`, and what they ask for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated

import typer

from seewhen.benchmarks import SCENES
from seewhen.cli.options import Lemmatizer, LoadingFlags, ModelFlags, ServerFlags, given, refuse
from seewhen.errors import InvalidInput

if TYPE_CHECKING:
    from seewhen.runs.evaluate import Ask, Machine
    from seewhen.served.remote import Remote

SERVED_ELSEWHERE = "does nothing with --server, where the server computes."

Controls = Annotated[
    bool, typer.Option("--controls/--no-controls", help="Also run regular, min-p, attention only, contrast only.")
]


@dataclass(frozen=True)
class AskFlags:
    """What is asked; the names are those of `Ask`."""

    data: Annotated[
        str, typer.Option("--data", help="Folder with the benchmark's files, or 'scenes' (needs no files).")
    ] = "scenes"
    images: Annotated[
        str | None, typer.Option("--images", help="Folder with the pictures; the data folder unless given.")
    ] = None
    image_list: Annotated[
        str | None, typer.Option("--image-list", help="CHAIR: a packaged list of images, or a file of ids.")
    ] = None
    split: Annotated[
        str | None, typer.Option("--split", help="Parts, by comma: coco-random; existence; test, shifted-popular.")
    ] = None
    style: Annotated[str | None, typer.Option("--style", help="Prompt style; see docs/benchmarks.md.")] = None
    parser: Annotated[str | None, typer.Option("--parser", help="Answer parser.")] = None
    lemmatizer: Lemmatizer = None
    similarity: Annotated[
        str | None,
        typer.Option("--similarity", help="AMBER: related (the default), or spacy (word vectors, as published)."),
    ] = None
    scenes: Annotated[int | None, typer.Option("--scenes", help="How many packaged scenes; 500 unless given.")] = (
        None
    )
    limit: Annotated[
        int | None, typer.Option("--limit", help="Only the first N samples (those of one image come together).")
    ] = None
    batch: Annotated[
        int, typer.Option("--batch", help="Samples answered together; halved when memory runs out.")
    ] = 24
    fast: Annotated[
        bool | None,
        typer.Option(
            "--fast/--no-fast",
            help="Captured decoding: faster, equal but for rounding. Default: on a GPU, where it applies.",
        ),
    ] = None
    seeds: Annotated[
        int | None, typer.Option("--seeds", help="Sample with this many seeds; without it decoding is greedy.")
    ] = None
    temperature: Annotated[float, typer.Option("--temperature", help="Of sampling.")] = 1.0
    noise: Annotated[
        str,
        typer.Option(
            "--noise", help="Of sampling: streams, or hash, made on the device: large vocabularies, GPUs."
        ),
    ] = "streams"
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", help="Instead of the prompt style's own.")
    ] = None


@dataclass(frozen=True)
class RunModelFlags(ModelFlags):
    """As elsewhere, but a run may use several devices."""

    device: Annotated[
        str | None,
        typer.Option("--device", help="One or several by comma: cpu, cuda:0,cuda:1. Default: cuda if there."),
    ] = None


@dataclass(frozen=True)
class ServedOftenFlags(ServerFlags):
    """A server that is asked many things."""

    at_once: Annotated[
        int, typer.Option("--at-once", min=1, help="With --server: answers, and requests, at once.")
    ] = 16

    def remote(self) -> Remote | None:
        """The served model."""
        if self.server is None and self.at_once != type(self).at_once:
            refuse(["at_once"], "needs a server.", "Add --server URL; for a model here there is --batch.")
        return super().remote()

    def patience(self) -> dict[str, float]:
        """So many at once."""
        return {"at_once": self.at_once}


@dataclass(frozen=True)
class ServedRunFlags(ServedOftenFlags, RunModelFlags):
    """A model here, or one that a server has."""


@dataclass(frozen=True)
class MachineFlags:
    """Who computes."""

    engine: Annotated[str, typer.Option("--engine", help="local or ray.")] = "local"
    ray_address: Annotated[
        str | None, typer.Option("--ray-address", help="Of a Ray cluster; one is started here if not given.")
    ] = None
    workers: Annotated[
        int | None, typer.Option("--workers", help="Ray: number of workers, one per GPU unless given.")
    ] = None


def ask_of(bench: str, asked: AskFlags, model: RunModelFlags) -> Ask:
    """Everything but the method and the machine."""
    from seewhen.runs.evaluate import Ask

    model.loading()  # refuses what does not exist
    how = {field.name: getattr(model, field.name) for field in fields(LoadingFlags) if field.name != "device"}
    if isinstance(model, ServedRunFlags) and (served := model.remote()):
        how |= served.for_runs()
        idle = [name for name in given(asked, AskFlags) if name in ("batch", "fast", "noise")]
        refuse(idle, SERVED_ELSEWHERE, "Leave it out; --at-once says how much is asked at a time.")
    if asked.seeds is None:
        idle = [name for name in given(asked, AskFlags) if name in ("temperature", "noise")]
        refuse(idle, "does nothing in greedy decoding.", "Add --seeds.")
    flags = asdict(asked) | {"fast": bool(asked.fast)}
    if flags["scenes"] is None:
        del flags["scenes"]
    elif flags["data"] != SCENES:
        raise InvalidInput(
            "--scenes counts packaged scenes, and --data names files.", "Leave one out; --limit takes the first N."
        )
    return Ask(bench, **{"model": model.model, **how, **flags})


def captured(ask: Ask, asked: AskFlags, model: RunModelFlags) -> Ask:
    """With captured decoding where nothing was said about it and the model is on a GPU as a whole."""
    if asked.fast is not None or ask.server is not None:
        return ask
    if model.device is not None:
        return replace(ask, fast=model.device.startswith("cuda"))
    import torch  # so this comes after everything that can be refused without it

    return replace(ask, fast=model.device_map is None and torch.cuda.is_available())


def machine_of(machine: MachineFlags, model: RunModelFlags) -> Machine:
    """The devices of this machine, or a cluster."""
    from seewhen.asking.opening import check_device
    from seewhen.runs.evaluate import Machine

    if isinstance(model, ServerFlags) and model.server is not None:
        refuse(given(machine, MachineFlags), SERVED_ELSEWHERE, "Leave it out.")
    devices = [name.strip() for name in model.device.split(",")] if model.device else []
    if devices and model.device_map:
        raise InvalidInput("--device and --device-map exclude each other.", "Give one of them.")
    made = Machine(machine.engine, devices, machine.workers, machine.ray_address)
    for device in devices:
        check_device(device)
    return made
