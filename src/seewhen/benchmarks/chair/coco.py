"""Which objects an image shows: COCO annotation files, or a table of objects per image."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from seewhen.errors import InvalidInput
from seewhen.reading import expecting, read_json
from seewhen.verdicts.lexicon import Lexicon

Objects = Mapping[str, frozenset[str]]
# Zeros are stripped afterwards: `0*(\d+)` would try every way to share out thousands of them.
_NUMBERED = re.compile(r"(?:COCO_\w+_)?(\d+)(?:\.\w+)?")
_FORM = 'Give instances_*.json and captions_*.json of COCO, or {"categories": [...], "images": {id: [...]}}.'


def image_key(image: object) -> str:
    """One name for an image: 391895, "391895" and "COCO_val2014_000000391895.jpg" are the same picture."""
    name = str(image)
    match = _NUMBERED.fullmatch(name.rpartition("/")[2])
    return match.group(1).lstrip("0") or "0" if match else name


def image_keys(images: Iterable[str], where: object) -> dict[str, str]:
    """Each image's name by its key. Two names for one picture would be judged by one truth: that is refused."""
    found: dict[str, str] = {}
    for image in images:
        other = found.setdefault(image_key(image), image)
        if other != image:
            raise InvalidInput(
                f"{where}: {other} and {image} name the same picture.",
                "Pictures are told apart by the number in a file's name, not by the folder: give each its own.",
            )
    return found


def load_objects(paths: Iterable[Path], lexicon: Lexicon, mentioned: Callable[[str], Iterable[str]]) -> Objects:
    """The union of what all files say, by image.

    CHAIR's rule needs both COCO's instances and its captions (train and val); `mentioned` gives the
    objects a caption names. A table `{"categories": [...], "images": {id: [index, ...]}}` has them ready.
    """
    objects: dict[str, set[str]] = {}
    for path in paths:
        content = read_json(path)
        with expecting(path, _FORM):
            if isinstance(content["images" if "annotations" not in content else "annotations"], dict):
                image_keys(content["images"], path)
                _add_table(content, lexicon, objects)
            else:
                _add_annotations(content, lexicon, mentioned, objects)
    return {image: frozenset(things) for image, things in objects.items()}


def _add_table(content: Mapping[str, Any], lexicon: Lexicon, objects: dict[str, set[str]]) -> None:
    names = dict(enumerate(_object(name, lexicon) for name in content.get("categories", [])))
    for image, things in content["images"].items():
        found = {names[thing] if type(thing) is int else _object(thing, lexicon) for thing in things}
        objects.setdefault(image_key(image), set()).update(found)


def _add_annotations(
    content: Mapping[str, Any],
    lexicon: Lexicon,
    mentioned: Callable[[str], Iterable[str]],
    objects: dict[str, set[str]],
) -> None:
    for image in content.get("images", []):  # an image without annotations shows nothing we know of
        objects.setdefault(image_key(image["id"]), set())
    names = {category["id"]: _object(category["name"], lexicon) for category in content.get("categories", [])}
    for annotation in content["annotations"]:
        if "category_id" in annotation:
            if annotation["category_id"] not in names:
                raise LookupError(f"category_id {annotation['category_id']!r:.40} is none of its categories")
            found: Iterable[str] = [names[annotation["category_id"]]]
        else:
            found = mentioned(_text(annotation["caption"]))
        objects.setdefault(image_key(annotation["image_id"]), set()).update(found)
    _add_file_names(content.get("images", []), objects)


def _add_file_names(images: Iterable[Mapping[str, Any]], objects: dict[str, set[str]]) -> None:
    """Of files whose numbers are not COCO's: there "1.jpg" may have the id 2, and its name decides."""
    for image in images:
        name, key = str(image.get("file_name", "")), image_key(image["id"])
        if name and image_key(name) != key:
            for each in (name, name.rpartition("/")[2]):
                objects.setdefault(each, objects[key])


def _object(name: Any, lexicon: Lexicon) -> str:
    """The vocabulary's word for a category; a category that it does not know keeps its name."""
    name = _text(name)
    return lexicon.node.get(name, lexicon.node.get(name.strip().lower(), name))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value
