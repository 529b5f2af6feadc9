"""Which objects are in somebody's own pictures: JSON, JSON lines, CSV, or COCO's annotations."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seewhen.benchmarks.chair.caption_reader import CaptionReader
from seewhen.benchmarks.chair.coco import image_key, load_objects
from seewhen.benchmarks.records import pick, read_records
from seewhen.errors import InvalidInput
from seewhen.reading import expecting, parse_json, read_text
from seewhen.runs.folders import IMAGE_KEYS
from seewhen.verdicts.lexicon import chair_lexicon, lexicon_named
from seewhen.verdicts.reader import read_mentions

_FORM = (
    'Give {"a.jpg": ["dog", "car"]}, JSON lines with image and objects, a CSV with a picture and its objects in '
    "each row, or COCO's instances file."
)


def reader_for(lexicon: str) -> CaptionReader:
    """What reads captions where labels judge them: CHAIR's 80 objects, or those of a file. Nobody labels every
    object of an open vocabulary."""
    return CaptionReader(lexicon=chair_lexicon() if lexicon == "open" else lexicon_named(lexicon))


def labels_of(
    path: Path, names: Sequence[str], reader: CaptionReader
) -> tuple[dict[str, frozenset[str]], list[str]]:
    """The objects of each picture that the file knows, by the reader's own names, and those it has no name for."""
    with expecting(path, _FORM):
        given = dict(_given(path, reader))
        places: dict[str, list[str]] = {}
        for key in given:
            for name in {Path(key).name, image_key(key)}:
                places.setdefault(name, []).append(key)
        known = {name: _key_of(name, given, places) for name in names}
    found: dict[str, frozenset[str]] = {}
    unknown: dict[str, None] = {}
    for name, place in known.items():
        if place is None:
            continue
        objects: set[str] = set()
        for term in given[place]:
            read = {mention.object for mention in read_mentions(term, reader.lexicon)}
            objects |= read
            unknown |= {} if read else {term: None}
        found[name] = frozenset(objects)
    if not found:
        raise InvalidInput(f"{path} names none of the pictures, for example {names[0]}.", _FORM)
    return found, list(unknown)


def _key_of(name: str, given: Mapping[str, Iterable[str]], places: Mapping[str, Sequence[str]]) -> str | None:
    """What the file calls a picture: its name, or one that differs in how much it says of the folder alone."""
    if name in given:
        return name
    for each in (Path(name).name, image_key(name)):
        keys = [key for key in places.get(each, ()) if _in_one_folder(key, name)]
        if len({frozenset(given[key]) for key in keys}) > 1:
            raise InvalidInput(
                f"{name} may be {' or '.join(keys[:3])} of the labels.", "Name pictures with folders."
            )
        if keys:
            return keys[0]
    return None


def _in_one_folder(one: str, other: str) -> bool:
    """Whether two paths may be of one folder: cats/1.jpg is not dogs/1.jpg, and may be 1.jpg."""
    pairs = zip(Path(one).parts[-2::-1], Path(other).parts[-2::-1], strict=False)
    return all(a == b for a, b in pairs)


def _given(path: Path, reader: CaptionReader) -> Iterator[tuple[str, Iterable[str]]]:
    text = read_text(path)
    if path.suffix.lower() == ".csv":
        yield from _rows(text)
        return
    whole = parse_json(text, str(path)) if path.suffix.lower() == ".json" else None
    if isinstance(whole, dict):
        yield from _table(path, whole, reader)
        return
    found: dict[str, list[str]] = {}
    for number, record in read_records(path):  # lines of one picture are put together
        found.setdefault(str(pick(path, number, record, IMAGE_KEYS)), []).extend(_texts(record["objects"]))
    yield from found.items()


def _rows(text: str) -> Iterator[tuple[str, Iterable[str]]]:
    """`a.jpg,dog,car` or `a.jpg,dog;car`; rows of one picture are put together, a first row of titles is none."""
    found: dict[str, list[str]] = {}
    for number, row in enumerate(csv.reader(text.splitlines())):
        if row and not (number == 0 and row[0].strip().lower() in IMAGE_KEYS):
            cells = (part.strip() for cell in row[1:] for part in cell.split(";"))
            found.setdefault(row[0].strip(), []).extend(filter(None, cells))
    yield from found.items()


def _table(path: Path, whole: Mapping[str, Any], reader: CaptionReader) -> Iterator[tuple[str, Iterable[str]]]:
    if "images" not in whole and "annotations" not in whole:
        yield from ((name, _texts(objects)) for name, objects in whole.items())
        return
    known = load_objects([path], reader.lexicon, reader.objects)
    yield from known.items()
    if isinstance(whole.get("images"), list):  # annotations in COCO's form need not have COCO's file names
        for image in whole["images"]:
            yield str(image.get("file_name", image["id"])), known[image_key(image["id"])]


def _texts(objects: Any) -> list[str]:
    if not isinstance(objects, list) or not all(isinstance(each, str) for each in objects):
        raise TypeError("objects are not a list of words")
    return objects
