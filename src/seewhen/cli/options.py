"""Flags that several commands share, as frozen dataclasses.

A command takes a group of flags as one parameter; `flags` spreads the groups into options for typer, so
that each flag is written once.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from seewhen.asking.options import Decoding
from seewhen.benchmarks import BENCHMARKS
from seewhen.errors import InvalidInput, InvalidMethod, UnsupportedMode, UnsupportedModel

if TYPE_CHECKING:
    from seewhen.decoding.method import Method
    from seewhen.served.remote import Remote

KEY = "OPENAI_API_KEY"
REQUEST_HELP = "name=value (JSON or text) for every request to the server, such as add_special_tokens=true"
AUTO = "auto"  # the picture decides which model answers
DTYPES = ("auto", "float32", "bfloat16", "float16")
_DEVICE = re.compile(r"(cpu|cuda|mps)(:\d+)?")


def show_traceback(wanted: bool) -> None:
    """`--debug` after the command does what it does before it."""
    if wanted:
        from seewhen import cli

        cli._debug = True


_ONE = "NAME[:PRESET][:name=value,...][:attention or :contrast][+...]; `seewhen methods`."
_SOME = "One method (cai:paper, cai:contrast=3, cai+vcd), more by comma, or all."


def _method(told: str, default: str = "") -> Any:
    """The option in words; `default` where it depends on other flags."""
    return typer.Option("--method", "-M", help=f"{told} {default}".strip(), show_default=not default)


_SERVED = "Default: cai; with --server: confirm."
MethodName = Annotated[str, _method(_ONE)]
MethodOrDefault = Annotated[str | None, _method(_ONE, _SERVED)]
MethodNames = Annotated[str, _method(_SOME)]
MethodsOrDefault = Annotated[str | None, _method(_SOME, _SERVED)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="name=value, for every named method with that parameter; may be repeated."),
]


NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="The longest answer, in tokens.")]
DoSample = Annotated[bool, typer.Option("--do-sample", help="Sample instead of taking the likeliest token.")]
Temperature = Annotated[float | None, typer.Option("--temperature", help="Of sampling; 1 unless given.")]
OpenPage = Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser, or only write it.")]
RunData = Annotated[
    Path | None, typer.Option("--data", help="Of runs over files: folder of the benchmark, as for `eval`.")
]
RunImages = Annotated[Path | None, typer.Option("--images", help="Of runs over files: folder of pictures.")]
Lemmatizer = Annotated[
    str | None, typer.Option("--lemmatizer", help="CHAIR, AMBER: offline (the default) or nltk.")
]
BenchName = Annotated[str, typer.Argument(metavar="BENCH", help=f"{', '.join(BENCHMARKS.built_in)}, or your own.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", callback=show_traceback)]


@dataclass(frozen=True)
class LoadingFlags:
    """How a model is loaded: the arguments of `seewhen.load` beside its name."""

    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps. Default: cuda where there is one.")
    ] = None
    dtype: Annotated[str, typer.Option("--dtype", help="auto, float32, bfloat16 or float16.")] = "auto"
    device_map: Annotated[
        str | None, typer.Option("--device-map", help="'auto' spreads a large model over all devices.")
    ] = None
    quantization: Annotated[
        str | None, typer.Option("--quantization", help="8bit or 4bit weights; needs the extra 'quant'.")
    ] = None
    adapter: Annotated[
        str | None, typer.Option("--adapter", help="Hub id or directory of a peft adapter (LoRA).")
    ] = None
    revision: Annotated[str | None, typer.Option("--revision", help="Revision of a hub model.")] = None
    attention: Annotated[
        str | None, typer.Option("--attention", help="Attention kernel of the model, e.g. sdpa or eager.")
    ] = None

    def loading(self) -> dict[str, Any]:
        """For `seewhen.load`, beside the name; only what was given."""
        if self.dtype not in DTYPES:
            raise InvalidInput(f"There is no dtype {self.dtype!r}.", f"Use one of {', '.join(DTYPES)}.")
        # A name that no machine has needs no torch to be refused; whether this machine has it, torch knows.
        for device in [] if self.device is None else self.device.split(","):
            if not _DEVICE.fullmatch(device.strip()):
                raise InvalidInput(f"There is no device {device.strip()!r}.", "Use cpu, cuda, cuda:1 or mps.")
        given = {field.name: getattr(self, field.name) for field in dataclasses.fields(LoadingFlags)}
        given["attn_implementation"] = given.pop("attention")
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class _NamedModel:
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Hub id, checkpoint directory, photo or packaged (drawn scenes).",
        ),
    ] = "packaged"


@dataclass(frozen=True)
class ModelFlags(LoadingFlags, _NamedModel):
    """Which model, and how it is loaded."""

    debug: Debug = False

    def remote(self) -> Remote | None:
        """The model as a served one, where it is one."""
        return None


@dataclass(frozen=True)
class PictureModelFlags(ModelFlags):
    """Which model answers about one picture; by default the picture decides."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="Hub id, checkpoint directory, 'packaged' (drawn scenes) or 'photo' (photographs). By default "
            "'photo' for anything but drawn scenes, where its language model is installed; else 'packaged'.",
        ),
    ] = AUTO


@dataclass(frozen=True)
class ServerFlags:
    """A model that an OpenAI-compatible server has."""

    server: Annotated[
        str | None, typer.Option("--server", help="Ask the model of this server instead: http://host:port/v1.")
    ] = None
    served_model: Annotated[
        str | None, typer.Option("--served-model", help="The name under which the server has it.")
    ] = None
    key_from: Annotated[
        str, typer.Option("--key-from", help="Environment variable that holds the server's key.")
    ] = KEY
    request: Annotated[list[str] | None, typer.Option("--request", help=f"{REQUEST_HELP}; may be repeated.")] = (
        None
    )

    def default(self, here: str, served: str) -> str:
        """The methods where none are named: what works inside a model cannot be done with a served one."""
        return here if self.server is None else served

    def remote(self) -> Remote | None:
        """The served model; None where the model is a local one."""
        if self.server is None:
            refuse(given(self, ServerFlags), "needs a server.", "Add --server URL.")
            return None
        if self.served_model is None:
            raise InvalidInput("--server needs the name of one of its models.", "Add --served-model NAME.")
        refuse(
            [name for name in given(self, ModelFlags) if getattr(self, name) != self.served_model],
            "does nothing with --server, which has loaded its model.",
            "Leave it out, or load the model here.",
        )
        from seewhen.served.remote import remote

        options, patience = self.extras(), self.patience()
        return remote(self.server, self.served_model, key_from=self.key_from, options=options, **patience)

    def patience(self) -> dict[str, float]:
        """How it is asked."""
        return {}

    def extras(self) -> dict[str, Any]:
        """What goes along with every request."""
        from seewhen.served.extras import extras_of

        return extras_of(self.request or [])


@dataclass(frozen=True)
class AnyModelFlags(ServerFlags, PictureModelFlags):
    """A model here, or one that a server has."""


@dataclass(frozen=True)
class DecodingFlags(Decoding):
    """How tokens are chosen; the names are those of transformers. Greedy unless `do_sample`."""

    max_new_tokens: NewTokens = 128
    do_sample: DoSample = False
    temperature: Temperature = None
    top_p: Annotated[float | None, typer.Option("--top-p", help="Of sampling; 1 (off) unless given.")] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Of sampling; 0 (off) unless given, not transformers' 50.")
    ] = None
    min_p: Annotated[float | None, typer.Option("--min-p", help="Of sampling; off unless given.")] = None
    num_beams: Annotated[int, typer.Option("--num-beams", min=1, help="Beam search above 1.")] = 1
    repetition_penalty: Annotated[float | None, typer.Option("--repetition-penalty", help="1 is none.")] = None
    seed: Annotated[int, typer.Option("--seed", help="Every method starts from it.")] = 0


@dataclass(frozen=True)
class OutputFlags:
    """What comes out beside the answer."""

    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page with heat maps to this file.")
    ] = None


def given(flags: object, group: type) -> list[str]:
    """The flags of one group that were given, by name: their values are not the defaults."""
    named = {field.name for field in dataclasses.fields(group)} - {"debug"}
    mine = (field for field in dataclasses.fields(flags) if field.name in named)  # type: ignore[arg-type]
    return [field.name for field in mine if getattr(flags, field.name) != field.default]


def between_commas(text: str | None) -> tuple[str, ...]:
    """The words of `dog, person`."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def refuse(names: list[str], why: str, way_out: str) -> None:
    """Refuse flags that would silently do nothing."""
    if names:
        raise InvalidInput(f"--{names[0].replace('_', '-')} {why}", way_out)


def refuse_trace(model: ModelFlags, trace: Path | None) -> None:
    """A trace is made inside a model."""
    if trace is not None and getattr(model, "server", None) is not None:
        raise InvalidInput("--trace: nothing inside a served model can be seen.", "Leave it out, or load it here.")


def usable(methods: Sequence[Method], check: Callable[[Method], None]) -> list[Method]:
    """Those that `check` takes; the others are named. A method that is alone is refused."""
    from seewhen.methods.grammar import label

    found: list[Method] = []
    for method in methods:
        try:
            check(method)
        except (InvalidMethod, UnsupportedMode, UnsupportedModel) as error:
            if len(methods) == 1:
                raise
            typer.echo(f"{label(method)} is left out: {error}", err=True)
        else:
            found.append(method)
    return found


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written before a model is loaded for nothing."""
    if path is not None and (path.is_dir() or not _takes_files(path.absolute().parent)):
        raise InvalidInput(f"{path} cannot be written.", "Give a file in a folder you can write to.")


def check_folder(path: Path | None) -> None:
    """The same for a folder that files will be put into, whether it is there or not."""
    if path is not None and not _takes_files(path.absolute()):
        raise InvalidInput(f"{path} is no folder that can be written to.", "Name another folder.")


def _takes_files(folder: Path) -> bool:
    above = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)


def flags(command: Callable[..., None]) -> Callable[..., None]:
    """Spread the parameters of `command` that are dataclasses into one option per field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    spread: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        options = [(name, parameter.default, hints[name])]
        if name in groups:
            own = get_type_hints(groups[name], include_extras=True)
            options = [(f.name, f.default, own[f.name]) for f in dataclasses.fields(groups[name])]
        spread += [
            inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for option, default, kind in options
        ]

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        made = {
            name: kind(**{field.name: values.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        command(**values, **made)

    flat.__signature__ = inspect.Signature(spread)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in spread}
    # typer follows __wrapped__ back to the groups otherwise.
    del flat.__wrapped__
    return flat
