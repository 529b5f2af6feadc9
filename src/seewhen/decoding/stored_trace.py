"""Traces on disk: NAME.json says what was traced, NAME.safetensors holds the tensors.

A trace may come from a stranger: it is checked once, here, so that nothing that shows it stumbles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from annotated_types import Interval, Len
from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from seewhen.atomic import naming_files, write
from seewhen.backbones.grids import ImageGrid
from seewhen.errors import InvalidInput
from seewhen.reading import MIB, check_form, read_json, stored_tensors

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1
_AGAIN = "Make it again: traces are made by `seewhen describe --trace FILE`."
_PICTURE = "picture."  # and its number: an image file
_ELSEWHERE = ("tensors", "tokens", "grids", "pictures", "completing")  # fields that are no JSON
_Small = Annotated[int, Interval(ge=0, le=100_000)]  # layers, steps, image tokens
_Side = Annotated[int, Interval(ge=1, le=100_000)]
# What a tensor has after its steps and rows: layers, or at least as many entries as a row has image tokens.
_LAYERS = ("gate", "entropy", "threshold", "mass_before", "mass_after")
_IMAGE = ("relevance", "similarity", "relevance_at_", "cosine_at_")
_LAYERS_AND_IMAGE = ("attention_before", "attention_after")
_HEADS_AND_IMAGE = ("heads_before_at_", "heads_after_at_")


class _Grid(TypedDict):
    image: Annotated[int, Interval(ge=0, le=1000)]
    start: _Small
    height: _Side
    width: _Side
    stride: _Side
    box: Annotated[list[Annotated[float, Interval(ge=-10, le=10)]], Len(4, 4)]
    kind: str


@with_config(ConfigDict(extra="forbid"))
class _Described(TypedDict):
    """The fields of a trace but its tensors."""

    format: Literal[1]
    method: dict[str, Any]
    level: str
    num_layers: _Small
    softmax_layers: list[_Small]
    tilted_layers: list[_Small]
    prompt_length: int
    lengths: list[_Small]
    image_tokens: list[_Small]
    grids: list[list[_Grid]]
    texts: NotRequired[list[list[str]]]
    runner_texts: NotRequired[list[list[list[str]]]]
    entropy_base: NotRequired[Annotated[float, Interval(gt=1, le=1e6)]]
    model: NotRequired[str]
    told: NotRequired[list[dict[str, Any]]]
    meta: NotRequired[dict[str, Any]]
    does: NotRequired[list[str]]


def save(fields: Mapping[str, Any], path: str | Path) -> Path:
    """Write the fields of a trace to both files, each as a whole; returns the JSON's path."""
    import torch
    from safetensors import torch as safetensors

    described, stored = _files(path)
    plain = {k: v for k, v in fields.items() if k not in _ELSEWHERE}
    plain["grids"] = [[asdict(grid) for grid in row] for row in fields["grids"]]
    plain["format"] = FORMAT
    tensors = {**fields["tensors"], "tokens": fields["tokens"]}
    for number, picture in enumerate(fields["pictures"]):
        tensors[f"{_PICTURE}{number}"] = torch.frombuffer(bytearray(picture), dtype=torch.uint8)
    # Not by its save_file, whose error on a full disk is no OSError.
    write(stored, safetensors.save({k: v.contiguous() for k, v in tensors.items()}))
    write(described, naming_files(json.dumps(plain, ensure_ascii=False, indent=1)))
    return described


def load(path: str | Path) -> dict[str, Any]:
    """The fields of a trace that `save` wrote."""
    from safetensors.torch import load_file

    described, stored = _files(path)
    plain = read_json(described, _AGAIN, largest=256 * MIB)
    check_form(_Described, plain, described, _AGAIN)
    with stored_tensors(stored, _AGAIN):
        tensors = load_file(stored)
        names = sorted((n for n in tensors if n.startswith(_PICTURE)), key=lambda name: (len(name), name))
        pictures = tuple(tensors.pop(name).numpy().tobytes() for name in names)
    del plain["format"]
    grids = tuple(tuple(ImageGrid(**{**g, "box": tuple(g["box"])}) for g in row) for row in plain.pop("grids"))
    fields = {name: _tuples(value) if isinstance(value, list) else value for name, value in plain.items()}
    found = {**fields, "grids": grids, "pictures": pictures}
    found |= {"tokens": tensors.pop("tokens", None), "tensors": tensors}
    wrong = _wrong(found)
    if wrong:
        raise InvalidInput(f"{described} and its tensors do not fit: {wrong}.", _AGAIN)
    return found


def _files(path: str | Path) -> tuple[Path, Path]:
    path = Path(path)
    base = path.with_suffix("") if path.suffix in (".json", ".safetensors") else path
    return base.with_name(base.name + ".json"), base.with_name(base.name + ".safetensors")


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def _wrong(found: dict[str, Any]) -> str:
    """What does not fit together, in a few words; empty if all does."""
    tokens, lengths, layers = found["tokens"], found["lengths"], found["num_layers"]
    if tokens is None or tokens.dim() != 2 or tokens.is_floating_point() or tokens.dtype.itemsize < 4:
        return "tokens"
    steps, rows = tokens.shape
    if len(lengths) != rows or max(lengths, default=0) > steps or not rows:
        return "lengths"
    if any(layer >= layers for layer in (*found["softmax_layers"], *found["tilted_layers"])):
        return "layers"
    if len(found["image_tokens"]) != rows or len(found["grids"]) not in (0, rows):
        return "image_tokens or grids"
    for count, grids in zip(found["image_tokens"], found["grids"], strict=False):
        if any(grid.stride < grid.width or grid.start + grid.tokens > count for grid in grids):
            return "grids"
    texts, runners = found.get("texts", ()), found.get("runner_texts", ())
    if (texts and tuple(map(len, texts)) != lengths) or (runners and tuple(map(len, runners)) != lengths):
        return "texts"
    if not _runners_fit(found["tensors"], runners):
        return "runner-up tokens"
    widest = max(found["image_tokens"])
    return next((n for n, t in found["tensors"].items() if not _fits(n, t, (steps, rows), layers, widest)), "")


def _runners_fit(tensors: dict[str, Tensor], texts: Any) -> bool:
    """Ids, chances and texts of the likeliest tokens are of the same number, or all missing."""
    ids, chances = tensors.get("top_ids"), tensors.get("top_log_probs")
    if ids is None or chances is None:
        return ids is chances and not texts
    same = ids.dim() == 3 and ids.shape == chances.shape and not ids.is_floating_point()
    return same and all(len(step) == ids.shape[2] for row in texts for step in row)


def _fits(name: str, tensor: Tensor, start: tuple[int, int], layers: int, image: int) -> bool:
    """Whether a tensor has the shape that its name promises; a name that nothing shows may have any."""
    shape = tuple(tensor.shape)
    if shape[:2] != start or tensor.is_complex():
        return False
    rest = shape[2:]
    if name in _LAYERS:
        return rest == (layers,) and (name != "gate" or str(tensor.dtype) == "torch.bool")
    if name in _LAYERS_AND_IMAGE:
        return len(rest) == 2 and rest[0] == layers and rest[1] >= image
    if name.startswith(_IMAGE):
        return len(rest) == 1 and rest[0] >= image and _numbered(name)
    if name.startswith(_HEADS_AND_IMAGE):
        return len(rest) == 2 and rest[1] >= image and _numbered(name)
    return len(rest) <= 1


def _numbered(name: str) -> bool:
    """The layer at the end of a name, where it has one, is a number."""
    number = name.partition("_at_")[2]
    return "_at_" not in name or (number.isdecimal() and len(number) < 6)
