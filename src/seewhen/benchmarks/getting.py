"""`seewhen data get`: part by part, going on where it stopped, with a record of what came from where."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from seewhen.atomic import write
from seewhen.benchmarks import load
from seewhen.benchmarks.download import RemoteFile, fetch
from seewhen.benchmarks.sources import SourcePart
from seewhen.errors import InvalidInput, SeewhenError
from seewhen.reading import MIB, check_form, read_json

RECORD = "sources.json"
_WAITING = ".downloads"  # archives on their way, in the data folder, so that a later start finds them
_AT_ONCE = 8


class _Brought(TypedDict):
    """What an entry of the record must have."""

    what: str
    revision: str


@dataclass(frozen=True)
class Pictures:
    """How many of the pictures that are asked about are there."""

    found: int
    wanted: int
    example: str  # one that is missing


def bring(
    benchmark: str, part: SourcePart, folder: Path, tick: Callable[[int], None], count: Callable[[], None]
) -> None:
    """Download a part and lay it out. `tick` hears of bytes of single files, `count` of each of many."""
    files = part.files(folder)
    if len(files) > _AT_ONCE:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(lambda file: fetch(file, _place(file, folder)), files):
                count()
    else:
        for file in files:
            fetch(file, _place(file, folder), tick)
    archives = [_place(file, folder) for file in files if not file.keep]
    if part.unpack is not None:
        part.unpack(archives, folder)
    for archive in archives:
        archive.unlink()
    if not any((folder / _WAITING).glob("*")):
        shutil.rmtree(folder / _WAITING, ignore_errors=True)
    _note(folder, benchmark, part, files)


def _place(file: RemoteFile, folder: Path) -> Path:
    return folder / (file.keep or f"{_WAITING}/{file.name}")


def read_record(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What was brought to this folder before, by benchmark."""
    path = folder / RECORD
    if not path.exists():
        return {}
    found: dict[str, list[dict[str, Any]]] = read_json(path, largest=16 * MIB)
    check_form(dict[str, list[_Brought]], found, path, "Delete it; only --again depends on it.")
    return found


def is_here(folder: Path, benchmark: str, part: SourcePart) -> bool:
    """Whether this part, in this revision, was brought before."""
    entries = read_record(folder).get(benchmark, [])
    return any(entry["what"] == part.what and entry["revision"] == part.revision for entry in entries)


def _note(folder: Path, benchmark: str, part: SourcePart, files: Sequence[RemoteFile]) -> None:
    record = read_record(folder)
    entry = {"what": part.what, "origin": part.origin, "revision": part.revision, "licence": part.licence}
    # Hundreds of pictures without a checksum are told well enough by their origin.
    named = [file for file in files if file.checksum or len(files) <= _AT_ONCE]
    shown = [{"url": file.url, "checksum": file.checksum} for file in named]
    kept = [old for old in record.get(benchmark, []) if old["what"] != part.what]
    record[benchmark] = [*kept, {**entry, "files": shown}]
    write(folder / RECORD, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def pictures(benchmark: str, folder: Path, image_list: str | None = None) -> Pictures:
    """Looks for the picture of every question that is there."""
    try:
        loaded = load(benchmark, folder, image_list=image_list)
    except SeewhenError as error:
        return Pictures(0, 0, str(error))
    found, missing = 0, ""
    samples = {sample.image: sample for sample in loaded.samples()}
    for name in sorted(samples):
        try:
            loaded.picture(samples[name], folder)
            found += 1
        except InvalidInput:
            missing = missing or name
    return Pictures(found, len(samples), missing)
