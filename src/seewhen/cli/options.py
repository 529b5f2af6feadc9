"""Flags that several commands share, as frozen dataclasses.

A command takes a group of flags as one parameter; `flags` spreads the groups into options for typer, so
that each flag is written once.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from seewhen.errors import InvalidInput

AUTO = "auto"  # the picture decides which model answers
DTYPES = ("auto", "float32", "bfloat16", "float16")


def show_traceback(wanted: bool) -> None:
    """`--debug` after the command does what it does before it."""
    if wanted:
        from seewhen import cli

        cli._debug = True


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

    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error.", callback=show_traceback)
    ] = False


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
class DecodingFlags:
    """How tokens are chosen; the names are those of transformers. Greedy unless `do_sample`."""

    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="The longest answer, in tokens.")
    ] = 128
    do_sample: Annotated[
        bool, typer.Option("--do-sample", help="Sample instead of taking the likeliest token.")
    ] = False
    temperature: Annotated[float | None, typer.Option("--temperature", help="Of sampling; 1 unless given.")] = None
    top_p: Annotated[float | None, typer.Option("--top-p", help="Of sampling; 1 (off) unless given.")] = None
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Of sampling; 0 (off) unless given, not transformers' 50.")
    ] = None
    min_p: Annotated[float | None, typer.Option("--min-p", help="Of sampling; off unless given.")] = None
    num_beams: Annotated[int, typer.Option("--num-beams", min=1, help="Beam search above 1.")] = 1
    repetition_penalty: Annotated[float | None, typer.Option("--repetition-penalty", help="1 is none.")] = None
    seed: Annotated[int, typer.Option("--seed", help="Every method starts from it.")] = 0

    def check(self) -> None:
        """Refuse what would silently do nothing."""
        given = [name for name in ("temperature", "top_p", "top_k", "min_p") if getattr(self, name) is not None]
        if given and not self.do_sample:
            raise InvalidInput(f"{_flag(given[0])} does nothing in greedy decoding.", "Add --do-sample.")

    def arguments(self) -> dict[str, Any]:
        """For `generate`. Everything is said, so that a checkpoint's generation config decides nothing."""
        chosen: dict[str, Any] = {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": self.do_sample,
            "num_beams": self.num_beams,
        }
        if self.do_sample:
            chosen["temperature"] = 1.0 if self.temperature is None else self.temperature
            chosen["top_p"] = 1.0 if self.top_p is None else self.top_p
            chosen["top_k"] = 0 if self.top_k is None else self.top_k
            if self.min_p is not None:
                chosen["min_p"] = self.min_p
        chosen["repetition_penalty"] = 1.0 if self.repetition_penalty is None else self.repetition_penalty
        return chosen

    def about(self) -> dict[str, Any]:
        """What a reader wants to know of it."""
        told = {k: v for k, v in self.arguments().items() if k not in ("do_sample", "max_new_tokens")}
        told = {k: v for k, v in told.items() if v != {"num_beams": 1, "repetition_penalty": 1.0}.get(k)}
        how: dict[str, Any] = {"decoding": "sampled" if self.do_sample else "greedy"}
        return how | told | ({"seed": self.seed} if self.do_sample else {})


@dataclass(frozen=True)
class OutputFlags:
    """What comes out beside the answer."""

    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False
    html: Annotated[
        Path | None, typer.Option("--html", help="Write one self-contained page with heat maps to this file.")
    ] = None


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written before a model is loaded for nothing."""
    if path is None:
        return
    above = next(parent for parent in path.absolute().parents if parent.exists())
    if path.is_dir() or not above.is_dir() or not os.access(above, os.W_OK):
        raise InvalidInput(f"{path} cannot be written.", "Give a file in a folder you can write to.")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def flags(command: Callable[..., None]) -> Callable[..., None]:
    """Spread the parameters of `command` that are dataclasses into one option per field."""
    hints = get_type_hints(command, include_extras=True)
    spread: list[inspect.Parameter] = []
    groups: dict[str, type] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            groups[name] = kind
            own = get_type_hints(kind, include_extras=True)
            for field in dataclasses.fields(kind):
                spread.append(
                    inspect.Parameter(
                        field.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=field.default,
                        annotation=own[field.name],
                    )
                )
        else:
            default = parameter.default
            spread.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
            )

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
