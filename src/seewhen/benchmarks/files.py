"""A benchmark's files: the names they go by, whether they are the published ones, and the pictures.

Nothing is downloaded here: only `seewhen data get` does that, when asked. A file that is not there gives an
error that says what was looked for and how to get it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seewhen.benchmarks.records import read_records
from seewhen.errors import InvalidInput
from seewhen.reading import read_text

# ok: the published content; present: there, but no checksum is published; differs: another content.
State = Literal["ok", "present", "differs", "broken", "missing"]


@dataclass(frozen=True)
class Expected:
    """A file of a benchmark: the names it goes by, relative to the data folder, and where to get it."""

    key: str  # benchmark/file
    names: tuple[str, ...]
    source: str
    checksum: str = ""  # SHA-256 of the published file, where that is known
    instead: bool = False  # it replaces all others

    @property
    def benchmark(self) -> str:
        return self.key.split("/")[0]

    def find(self, folder: Path) -> Path | None:
        """The first of its names that exists."""
        return next((folder / name for name in self.names if (folder / name).exists()), None)

    def locate(self, folder: Path) -> Path:
        """As `find`, but a missing file is an error that says what was looked for and how to get it."""
        path = self.find(folder)
        if path is None:
            raise InvalidInput(
                f"{self.key} is not in {folder}: looked for {', '.join(self.names[:4])} and similar places.",
                f"`seewhen data get {self.benchmark} --to {folder}` downloads it; by hand from {self.source}. "
                f"`seewhen data check {folder}` lists everything.",
            )
        return path


def under(folders: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Every name in every folder."""
    return tuple(folder + name for folder in folders for name in names)


def look_at(expected: Expected, path: Path) -> tuple[State, str]:
    """Compares a file with its published checksum, where there is one."""
    if not expected.checksum:
        return "present", f"{path.stat().st_size / 1e6:.1f} MB, no published checksum"
    if file_checksum(path) == expected.checksum:
        return "ok", ""
    return "differs", "another content than the published file"


def file_checksum(path: Path) -> str:
    """SHA-256 of the file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


_PICTURE_FOLDERS = ("val2014", "train2014", "val2017", "train2017", "images", "image")


def picture_names(image: str) -> list[str]:
    """What a picture's file may be called: its name, or COCO's names for its number, the usual one first."""
    if image.isdecimal() and len(image) <= 12:
        number = f"{int(image):012d}.jpg"
        return [f"COCO_val2014_{number}", f"COCO_train2014_{number}", number]
    return [image]


def find_image(folder: Path, image: str) -> Path:
    """A picture by its name, or by COCO's names for its number."""
    names = picture_names(image)
    for place in ("", *_PICTURE_FOLDERS):
        for name in names:
            if os.path.isfile(folder / place / name):  # unlike Path.is_file, of any name
                return folder / place / name
    raise InvalidInput(
        f"The picture {image} is not in {folder}: looked for {', '.join(names)}.",
        f"Name (--images) the folder that holds them, or the one above {', '.join(_PICTURE_FOLDERS)}; "
        "`seewhen data get` downloads most.",
    )


def read_image_list(path: Path) -> tuple[str, ...]:
    """Image ids, one per line, or the `image_id` of JSON lines; in the order of the file."""
    text = read_text(path, "Give a file with one image id per line.")
    if text.lstrip().startswith(("{", "[")):
        return tuple(str(record["image_id"]) for _, record in read_records(path) if "image_id" in record)
    return tuple(line.strip() for line in text.splitlines() if line.strip())
