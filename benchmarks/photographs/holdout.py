"""Which photographs are never trained on, and which are.

Photographs go by their COCO number, which is the same in the 2014 and the 2017 releases.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

from seewhen.benchmarks.chair.coco import image_key
from seewhen.benchmarks.chair.files import chair_image_lists
from seewhen.benchmarks.pope.files import FILES
from seewhen.benchmarks.records import read_records
from seewhen.errors import InvalidInput

LISTS = Path(__file__).with_name("holdout.json")
TRAINED = Path(__file__).with_name("trained.txt.xz")
VALIDATION = 1000
RARE = 2000  # objects in fewer photographs than this: all of their photographs are trained on

Objects = Mapping[int, tuple[int, ...]]


def load_table(path: Path) -> tuple[tuple[str, ...], Objects]:
    """The 80 categories, and for every photograph the indices of those it shows."""
    if not path.is_file():
        raise InvalidInput(
            f"There is no file {path}.", "Give coco_objects.json.gz, the table of objects per image."
        )
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        table = json.load(stream)
    return tuple(table["categories"]), {int(k): tuple(v) for k, v in table["images"].items()}


def shuffled(numbers: Collection[int], purpose: str) -> list[int]:
    """An order that looks random and is the same everywhere."""
    return sorted(numbers, key=lambda n: hashlib.sha256(f"{purpose}/{n}".encode()).digest())


def build(
    data: Path, annotated: Collection[int], objects: Objects, available: Collection[int]
) -> dict[str, list[int]]:
    """The lists. `data` is the folder of the benchmarks' files; `available` the photographs that are available."""
    lists = {"pope": _pope(data), "chair": _chair(data), "annotated": set(annotated)}
    tested = set().union(*lists.values())
    free = [n for n in available if n not in tested and len(objects.get(n, ())) >= 1]
    lists["validation"] = set(shuffled(free, "validation")[:VALIDATION])
    return {name: sorted(numbers) for name, numbers in lists.items()}


def _pope(data: Path) -> set[int]:
    """The images of all POPE questions on COCO photographs, A-OKVQA's included."""
    numbers: set[int] = set()
    for split in ("coco", "aokvqa"):
        for kind in ("random", "popular", "adversarial"):
            path = FILES[f"{split}-{kind}"].find(data)
            if path is None:
                raise InvalidInput(
                    f"{data} lacks the questions {split}-{kind}.", f"See 'seewhen data check {data}'."
                )
            numbers |= {int(image_key(record["image"])) for _, record in read_records(path)}
    return numbers


def _chair(data: Path) -> set[int]:
    """The images of the published caption files and of the packaged lists."""
    numbers = {int(image_key(image)) for images in chair_image_lists().values() for image in images}
    for path in sorted((data / "chair" / "captions").glob("*.jsonl")):
        numbers |= {int(image_key(record["image_id"])) for _, record in read_records(path)}
    return numbers


def read(path: Path = LISTS) -> dict[str, frozenset[int]]:
    """The committed lists."""
    return {name: frozenset(numbers) for name, numbers in json.loads(path.read_text("utf-8")).items()}


def training_order(objects: Objects, available: Collection[int], held_out: Collection[int]) -> list[int]:
    """What may be trained on, in the order in which to take it.

    First all photographs of the rarer objects, since half of 189 hair driers teach nothing; then at random.
    Photographs without a known object come last: nothing can be said about them but no.
    """
    free = [n for n in available if n not in set(held_out)]
    count = Counter(thing for n in free for thing in objects.get(n, ()))

    def group(number: int) -> int:
        things = objects.get(number, ())
        if not things:
            return 2
        return 0 if any(count[thing] < RARE for thing in things) else 1

    order = shuffled(free, "training")
    return sorted(order, key=group)


def write_trained(numbers: Collection[int], path: Path = TRAINED) -> None:
    """The photographs that were trained on: sorted, each as the distance from the one before, a line each."""
    ordered = sorted(numbers)
    gaps = [b - a for a, b in pairwise([0, *ordered])]
    path.write_bytes(lzma.compress("\n".join(map(str, gaps)).encode(), preset=9))


def trained(path: Path = TRAINED) -> list[int]:
    """The committed list of what the packaged photo model was trained on."""
    return list(accumulate(int(gap) for gap in lzma.decompress(path.read_bytes()).split()))


def write(lists: Mapping[str, Sequence[int]], path: Path = LISTS) -> None:
    """One line per list."""
    rows = [
        f"{json.dumps(name)}: {json.dumps(list(numbers), separators=(',', ':'))}"
        for name, numbers in lists.items()
    ]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
