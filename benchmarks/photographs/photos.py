"""Photographs in shards: small squares in WebP, many in one file, decoded by all cores into one tensor."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from seewhen.atomic import replacing
from seewhen.errors import InvalidInput

SIDE = 224  # pixels; a multiple of the tower's patches of 14
PIECE = 64  # photographs that travel between processes at once
Encoded = Sequence[bytes]


@dataclass(frozen=True)
class Photos:
    """Decoded photographs: numbers, and bytes (n, side, side, 3)."""

    numbers: Tensor
    pixels: Tensor

    def __len__(self) -> int:
        return len(self.numbers)


def shrink(content: bytes, quality: int, side: int = SIDE) -> bytes:
    """Any picture file as a small square; the aspect is given up, as everywhere in this recipe."""
    with Image.open(io.BytesIO(content)) as picture:
        square = picture.convert("RGB").resize((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    square.save(out, "WEBP", quality=quality, method=4)
    return out.getvalue()


def write_shard(path: Path, content: Mapping[int, bytes]) -> None:
    """`content` is one encoded picture per photograph."""
    ends = np.cumsum([0, *(len(picture) for picture in content.values())])
    tensors = {
        "numbers": torch.tensor(list(content), dtype=torch.int32),
        "ends": torch.tensor(ends, dtype=torch.int64),
        "bytes": torch.frombuffer(bytearray(b"".join(content.values())), dtype=torch.uint8),
    }
    with replacing(path) as name:
        save_file(tensors, name)


def read_shard(path: Path) -> dict[int, bytes]:
    """Encoded pictures by number."""
    if not path.is_file():
        raise InvalidInput(
            f"There is no shard {path}.", "See benchmarks/photographs/README.md for how to make it."
        )
    tensors = load_file(path)
    whole, ends = tensors["bytes"].numpy().tobytes(), tensors["ends"].tolist()
    return {n: whole[a:b] for n, a, b in zip(tensors["numbers"].tolist(), ends[:-1], ends[1:], strict=True)}


def decode(pictures: Encoded, side: int) -> np.ndarray:
    """Bytes (n, side, side, 3)."""
    out = np.empty((len(pictures), side, side, 3), dtype=np.uint8)
    for i, content in enumerate(pictures):
        with Image.open(io.BytesIO(content)) as picture:
            rgb = picture.convert("RGB")
            out[i] = np.asarray(rgb if rgb.size == (side, side) else rgb.resize((side, side)))
    return out


def decoders(workers: int) -> Executor | None:
    """Processes that decode, all of them started; None if it is not worth one."""
    if workers <= 1:
        return None
    pool = ProcessPoolExecutor(workers)
    list(pool.map(len, [()] * workers))
    return pool


def load_photos(shards: Iterable[Path], device: str, pool: Executor | None = None, side: int = SIDE) -> Photos:
    """All photographs of the shards, on the device."""
    content: dict[int, bytes] = {}
    for shard in shards:
        content.update(read_shard(shard))
    if not content:
        raise InvalidInput("There are no photographs.", "Name a folder with train-*.safetensors in it.")
    pictures = list(content.values())
    pixels = torch.empty((len(pictures), side, side, 3), dtype=torch.uint8, device=device)
    cuts = [pictures[i : i + PIECE] for i in range(0, len(pictures), PIECE)]
    _fill(pixels, (pool.map if pool else map)(decode, cuts, repeat(side)))
    return Photos(torch.tensor(list(content)), pixels)


def _fill(pixels: Tensor, pieces: Iterable[np.ndarray]) -> None:
    start = 0
    for piece in pieces:
        pixels[start : start + len(piece)] = torch.from_numpy(piece).to(pixels.device)
        start += len(piece)


def names_in(repository: Path, folders: Sequence[str]) -> dict[int, str]:
    """Photographs in the newest commit of a git directory: number -> blob."""
    listing = subprocess.run(
        ["git", "-C", str(repository), "ls-tree", "-r", "HEAD", *folders],
        check=True,
        capture_output=True,
        text=True,
    )
    found = {}
    for line in listing.stdout.splitlines():
        facts, _, name = line.partition("\t")
        stem, _, end = name.rsplit("/", 1)[-1].partition(".")
        if end == "jpg" and stem.isdigit():
            found[int(stem)] = facts.split()[2]
    return found


def blobs(repository: Path, wanted: Sequence[str]) -> Iterator[bytes]:
    """The content of blobs, in order."""
    command = ["git", "-C", str(repository), "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for name in wanted:  # one by one: filling one pipe while the other is full would hang
            process.stdin.write(name.encode() + b"\n")
            process.stdin.flush()
            header = process.stdout.readline().split()
            if header[-1] == b"missing":
                raise InvalidInput(f"The blob {name} is not in {repository}.", "Fetch the repository whole.")
            yield process.stdout.read(int(header[2]))
            process.stdout.read(1)
        process.stdin.close()


def shards_of(content: Iterable[tuple[int, bytes]], limit: int, most: int) -> Iterator[dict[int, bytes]]:
    """Cuts a stream of encoded photographs into at most `most` shards of at most `limit` bytes of pictures."""
    current: dict[int, bytes] = {}
    size = done = 0
    for number, picture in content:
        if current and size + len(picture) > limit:
            yield current
            current, size, done = {}, 0, done + 1
            if done == most:
                return
        current[number] = picture
        size += len(picture)
    if current:
        yield current
