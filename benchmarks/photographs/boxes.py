"""Where objects are: boxes of the annotated photographs, from COCO's JSON or YOLO's text files."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from photographs import photos

# YOLO files number the 80 categories in COCO's order, not in the table's alphabetical one.
COCO = (  # noqa: SIM905
    "person,bicycle,car,motorcycle,airplane,bus,train,truck,boat,traffic light,fire hydrant,stop sign,"
    "parking meter,bench,bird,cat,dog,horse,sheep,cow,elephant,bear,zebra,giraffe,backpack,umbrella,"
    "handbag,tie,suitcase,frisbee,skis,snowboard,sports ball,kite,baseball bat,baseball glove,skateboard,"
    "surfboard,tennis racket,bottle,wine glass,cup,fork,knife,spoon,bowl,banana,apple,sandwich,orange,"
    "broccoli,carrot,hot dog,pizza,donut,cake,chair,couch,potted plant,bed,dining table,toilet,tv,laptop,"
    "mouse,remote,keyboard,cell phone,microwave,oven,toaster,sink,refrigerator,book,clock,vase,scissors,"
    "teddy bear,hair drier,toothbrush"
).split(",")

Box = tuple[str, float, float, float, float]
Boxes = dict[str, list[Box]]


def collect(repositories: Sequence[Path]) -> Boxes:
    """By photograph: (object, left, top, right, bottom), as shares of the picture, so squares have the same."""
    found: Boxes = {}
    for repository in repositories:
        names = _files(repository)
        for name, blob in names.items():
            if name.startswith("annotations/instances_") and name.endswith(".json"):
                found |= _from_coco(json.loads(next(photos.blobs(repository, [blob]))))
        labels = {
            n: b for n, b in names.items() if n.startswith("object_detection/labels/") and n.endswith(".txt")
        }
        for name, text in zip(labels, photos.blobs(repository, list(labels.values())), strict=True):
            found[str(int(Path(name).stem))] = _from_yolo(text.decode())
    return found


def _files(repository: Path) -> dict[str, str]:
    command = ["git", "-C", str(repository), "ls-tree", "-r", "HEAD"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.partition("\t")[2]: line.split()[2] for line in lines}


def _from_coco(content: dict) -> Boxes:
    names = {category["id"]: category["name"] for category in content["categories"]}
    sizes = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    found: Boxes = {str(image): [] for image in sizes}
    for annotation in content["annotations"]:
        if annotation.get("iscrowd"):
            continue
        width, height = sizes[annotation["image_id"]]
        x, y, w, h = annotation["bbox"]
        thing = names[annotation["category_id"]]
        box = _box(thing, x / width, y / height, (x + w) / width, (y + h) / height)
        found[str(annotation["image_id"])].append(box)
    return found


def _from_yolo(text: str) -> list[Box]:
    found: list[Box] = []
    for line in text.splitlines():
        kind, *numbers = line.split()
        x, y, w, h = map(float, numbers)
        found.append(_box(COCO[int(kind)], x - w / 2, y - h / 2, x + w / 2, y + h / 2))
    return found


def _box(thing: str, left: float, top: float, right: float, bottom: float) -> Box:
    return thing, round(left, 4), round(top, 4), round(right, 4), round(bottom, 4)
