"""Which objects an image shows: COCO annotation files, or a table of objects per image."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from seewhen.bench.answers import read_json
from seewhen.bench.lexicon import Lexicon
from seewhen.errors import InvalidInput

Objects = Mapping[str, frozenset[str]]


def image_key(image: object) -> str:
    """One name for an image: 391895, "391895" and "COCO_val2014_000000391895.jpg" are the same picture."""
    name = str(image)
    match = re.fullmatch(r"(?:.*/)?(?:COCO_\w+_)?0*(\d+)(?:\.\w+)?", name)
    return match.group(1) if match else name


def load_objects(paths: Iterable[Path], lexicon: Lexicon, mentioned: Callable[[str], Iterable[str]]) -> Objects:
    """The union of what all files say, by image.

    CHAIR's rule needs both COCO's instances and its captions (train and val); `mentioned` gives the
    objects a caption names. A table `{"categories": [...], "images": {id: [index, ...]}}` has them ready.
    """
    objects: dict[str, set[str]] = {}
    for path in paths:
        content = read_json(path)
        if not isinstance(content, dict):
            raise _unknown_form(path)
        if isinstance(content.get("images"), dict):
            _add_table(path, content, objects)
        elif isinstance(content.get("annotations"), list):
            for image in content.get("images", []):  # an image without annotations shows nothing we know of
                objects.setdefault(image_key(image["id"]), set())
            _add_annotations(path, content, lexicon, mentioned, objects)
        else:
            raise _unknown_form(path)
    return {image: frozenset(things) for image, things in objects.items()}


def _add_table(path: Path, content: Mapping[str, Any], objects: dict[str, set[str]]) -> None:
    names = content.get("categories", [])
    for image, things in content["images"].items():
        try:
            found = {names[thing] if isinstance(thing, int) else str(thing) for thing in things}
        except (IndexError, TypeError):
            raise InvalidInput(
                f"{path}: the objects of image {image} are not in its list of categories.",
                'The form is {"categories": [names], "images": {id: [index or name, ...]}}.',
            ) from None
        objects.setdefault(image_key(image), set()).update(found)


def _add_annotations(
    path: Path,
    content: Mapping[str, Any],
    lexicon: Lexicon,
    mentioned: Callable[[str], Iterable[str]],
    objects: dict[str, set[str]],
) -> None:
    names = {category["id"]: category["name"] for category in content.get("categories", [])}
    for annotation in content["annotations"]:
        if "category_id" in annotation:
            name = names.get(annotation["category_id"], "")
            found: Iterable[str] = [lexicon.node.get(name, name)]
        elif "caption" in annotation:
            found = mentioned(annotation["caption"])
        else:
            raise _unknown_form(path)
        objects.setdefault(image_key(annotation["image_id"]), set()).update(found)


def _unknown_form(path: Path) -> InvalidInput:
    return InvalidInput(
        f"{path} is neither a COCO instances or captions file nor a table of objects.",
        'Give instances_*.json and captions_*.json of COCO, or {"categories": [...], "images": {id: [...]}}.',
    )
