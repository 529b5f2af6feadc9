"""Reads a state dict in PyTorch's older file format without unpickling it.

The file is five pickles (magic number, version, machine, state, order of the storages), then the numbers of each
storage. The pickles are disassembled into dicts, tuples and notes of what they would have called; nothing is
called.
"""

from __future__ import annotations

import pickletools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from seewhen.errors import InvalidInput

_NUMBERS = {"torch FloatStorage": "<f4", "torch LongStorage": "<i8"}
_MARK = object()


@dataclass(frozen=True)
class Call:
    """What the file asks to be called; kept as a note."""

    name: str
    arguments: tuple[Any, ...]


def read_pth(path: Path) -> dict[str, Tensor]:
    """The tensors by name."""
    if not path.is_file():
        raise InvalidInput(
            f"There is no file {path}.", "See benchmarks/photographs/README.md for where to get it."
        )
    with path.open("rb") as file:
        try:
            _, _, _, state, order = (disassembled(file) for _ in range(5))
            asked = {name: _tensor(call) for name, call in state.items()}
            numbers = {key: np.dtype(_NUMBERS[kind]) for key, kind, *_ in asked.values()}
            storages = {}
            for key in order:
                count = int.from_bytes(file.read(8), "little")
                content = np.frombuffer(file.read(count * numbers[key].itemsize), numbers[key])
                storages[key] = torch.from_numpy(content.copy())
            return {  # a shape or stride that leaves the storage is an error
                name: storages[key].as_strided(shape, strides, start).contiguous()
                for name, (key, _, start, shape, strides) in asked.items()
            }
        except (ValueError, KeyError, IndexError, AttributeError, TypeError, RuntimeError) as error:
            raise InvalidInput(
                f"{path} is not a plain state dict in PyTorch's older format: {error}.",
                "Only tensors of float32 and int64 can be read.",
            ) from error


def _tensor(call: Any) -> tuple[str, str, int, tuple[int, ...], tuple[int, ...]]:
    """Key of the storage, its kind, where the tensor starts in it, shape, strides."""
    if not isinstance(call, Call) or call.name != "torch._utils _rebuild_tensor_v2":
        raise ValueError(f"{call} is not a tensor")
    storage, start, shape, strides = call.arguments[:4]
    _, kind, key = storage.arguments[:3]
    return key, kind.name, start, shape, strides


def disassembled(file: BinaryIO) -> Any:
    """One pickle as plain data: only the few instructions that state dicts are made of."""
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        at = max(i for i, thing in enumerate(stack) if thing is _MARK)
        taken = stack[at + 1 :]
        del stack[at:]
        return taken

    value: Any
    for instruction, value, _ in pickletools.genops(file):
        match instruction.name:
            case "PROTO" | "STOP":
                pass
            case "BINPUT" | "LONG_BINPUT":
                memo[value] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[value])
            case "MARK":
                stack.append(_MARK)
            case "BINUNICODE" | "BININT" | "BININT1" | "BININT2" | "LONG1":
                stack.append(value)
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[instruction.name])
            case "GLOBAL":
                stack.append(Call(value, ()))
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = ("EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3").index(instruction.name)
                stack[len(stack) - size :] = [tuple(stack[len(stack) - size :])]
            case "TUPLE":
                stack.append(tuple(since_mark()))
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "APPENDS":
                things = since_mark()
                stack[-1].extend(things)
            case "SETITEM":
                stack[-3][stack[-2]] = stack[-1]
                del stack[-2:]
            case "SETITEMS":
                _set(stack, since_mark())
            case "BINPERSID":
                stack.append(Call("storage", stack.pop()))
            case "REDUCE":
                arguments, called = stack.pop(), stack.pop()
                ordered = called.name == "collections OrderedDict" and not arguments
                stack.append({} if ordered else Call(called.name, arguments))
            case "BUILD":  # attributes of the dict: versions of its modules
                stack.pop()
            case other:
                raise ValueError(f"the instruction {other} has no place in a state dict")
    return stack.pop()


def _set(stack: list[Any], things: Sequence[Any]) -> None:
    stack[-1].update(zip(things[::2], things[1::2], strict=True))
