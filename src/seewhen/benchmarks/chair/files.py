"""CHAIR's files: COCO's annotations, or a table of objects made from them; lists of images."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath

from seewhen.benchmarks.download import RemoteFile
from seewhen.benchmarks.files import Expected, read_image_list, under
from seewhen.benchmarks.sources import COCO, COCO_TERMS, PICTURE_SIZE, SourcePart, coco_pictures, unzip

_FOLDERS = ("", "annotations/", "coco/annotations/", "coco/")
_SOURCE = "annotations_trainval2014.zip of cocodataset.org"

TABLE = Expected(
    "chair/objects", ("coco_objects.json.gz", "coco_objects.json"), "a table you made before", instead=True
)
ANNOTATIONS = tuple(
    Expected(f"chair/{what}_{part}2014", under(_FOLDERS, (f"{what}_{part}2014.json",)), _SOURCE)
    for what in ("instances", "captions")
    for part in ("val", "train")
)


@cache
def chair_image_lists() -> dict[str, tuple[str, ...]]:
    """Named lists of image ids, so that nobody has to shuffle a directory listing."""
    text = resources.files(__package__).joinpath("images.json").read_text(encoding="utf-8")
    return {name: tuple(str(image) for image in images) for name, images in json.loads(text)["lists"].items()}


def image_list(name: str | None) -> tuple[str, tuple[str, ...]]:
    """A list of image ids and its name: a packaged one (the first if none is named), or a file."""
    lists = chair_image_lists()
    name = name or next(iter(lists))
    return name, lists[name] if name in lists else read_image_list(Path(name))


def downloads(chosen: str | None) -> list[SourcePart]:
    """COCO's annotations, and the pictures of a list."""
    name, ids = image_list(chosen)
    pictures = coco_pictures(f"COCO_val2014_{int(number):012d}.jpg" for number in ids)
    annotations = RemoteFile(
        f"{COCO}/annotations/annotations_trainval2014.zip",
        size=252_872_794,
        checksum="md5:0a379cfc70b0e71301e0f377548639bd",
    )
    return [
        SourcePart(
            "instances and captions, train and val 2014",
            "cocodataset.org",
            COCO_TERMS,
            annotations.size or 0,
            lambda folder: [annotations],
            lambda archives, folder: unzip(archives, folder, _annotation_file),
        ),
        SourcePart(
            f"{len(pictures)} pictures of {name}",
            "cocodataset.org",
            COCO_TERMS,
            len(pictures) * PICTURE_SIZE,
            lambda folder: pictures,
        ),
    ]


def _annotation_file(member: PurePosixPath) -> str | None:
    wanted = re.fullmatch(r"(instances|captions)_(train|val)2014\.json", member.name)
    return f"annotations/{member.name}" if wanted else None
