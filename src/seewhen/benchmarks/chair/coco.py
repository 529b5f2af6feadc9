"""Which objects an image shows: COCO annotation files, or a table of objects per image."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

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
                _add_table(content, objects)
            else:
                _add_annotations(content, lexicon, mentioned, objects)
    return {image: frozenset(things) for image, things in objects.items()}


def _add_table(content: Mapping[str, Any], objects: dict[str, set[str]]) -> None:
    names = [_text(name) for name in content.get("categories", [])]
    for image, things in content["images"].items():
        found = {names[thing] if isinstance(thing, int) else _text(thing) for thing in things}
        objects.setdefault(image_key(image), set()).update(found)


def _add_annotations(
    content: Mapping[str, Any],
    lexicon: Lexicon,
    mentioned: Callable[[str], Iterable[str]],
    objects: dict[str, set[str]],
) -> None:
    for image in content.get("images", []):  # an image without annotations shows nothing we know of
        objects.setdefault(image_key(image["id"]), set())
    names = {category["id"]: _text(category["name"]) for category in content.get("categories", [])}
    for annotation in content["annotations"]:
        if "category_id" in annotation:
            name = names.get(annotation["category_id"], "")
            found: Iterable[str] = [lexicon.node.get(name, name)]
        else:
            found = mentioned(_text(annotation["caption"]))
        objects.setdefault(image_key(annotation["image_id"]), set()).update(found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value
