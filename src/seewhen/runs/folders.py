"""Pictures as people have them: folders, patterns, lists, single files."""

from __future__ import annotations

import glob
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from seewhen.benchmarks.files import file_checksum
from seewhen.benchmarks.records import pick, read_records
from seewhen.errors import InvalidInput
from seewhen.reading import read_text

# What is taken for a picture in a folder; a file that is named may end otherwise.
_PICTURES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".avif", ".heic", ".heif")
_LISTS = (".txt", ".list", ".lst", ".json", ".jsonl")
IMAGE_KEYS = ("image", "image_path", "file_name")


@dataclass(frozen=True)
class Photo:
    """A picture file and the name by which everybody calls it."""

    name: str
    path: Path

    @cached_property
    def id(self) -> str:
        """Changes with the content, so that another picture under an old name is answered anew."""
        try:
            return f"{self.name}#{file_checksum(self.path)[:12]}"
        except OSError:
            return f"{self.name}#unreadable"


def photos_of(given: Sequence[str | Path], limit: int | None = None) -> list[Photo]:
    """The pictures of folders (with those inside), patterns, lists and files, each once, in their order."""
    found: dict[Path, str] = {}
    for each in given:
        for path, name in _named(str(each)):
            found.setdefault(path.absolute(), name)
    if not found:
        raise InvalidInput(
            f"There is no picture in {', '.join(map(str, given)) or 'nothing'}.",
            "Name a folder, files, a pattern such as 'photos/*.jpg', or a list with one file per line.",
        )
    times = Counter(found.values())
    # Half a character of a broken file name cannot be written.
    return [
        Photo((name if times[name] == 1 else str(path)).encode("utf-8", "replace").decode(), path)
        for path, name in list(found.items())[:limit]
    ]


def _named(given: str) -> Iterator[tuple[Path, str]]:
    path = Path(given).expanduser()
    if path.is_dir():
        inside = (p.relative_to(path) for p in path.rglob("*") if p.suffix.lower() in _PICTURES)
        seen = sorted(p for p in inside if not any(part.startswith(".") for part in p.parts))
        yield from ((path / p, p.as_posix()) for p in seen if (path / p).is_file())
    elif path.is_file() and path.suffix.lower() in _LISTS:
        yield from _listed(path)
    elif path.exists():
        yield path, path.name
    else:
        matches = sorted(glob.glob(str(path), recursive=True)) if glob.has_magic(given) else []
        if not matches:
            raise InvalidInput(f"There is no file or folder {given}.", "Put a pattern in quotes: 'photos/*.jpg'.")
        yield from ((Path(match), Path(match).name) for match in matches if Path(match).is_file())


def _listed(path: Path) -> Iterator[tuple[Path, str]]:
    """One file per line, or JSON with `image`; names are relative to the list."""
    if path.suffix.lower() in (".json", ".jsonl"):
        lines = [str(pick(path, number, record, IMAGE_KEYS)) for number, record in read_records(path)]
    else:
        lines = [line.strip() for line in read_text(path).split("\n")]
    yield from ((path.parent / Path(line).expanduser(), line) for line in lines if line)
