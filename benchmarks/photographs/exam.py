"""The held-out photographs as folders that `seewhen eval --data` takes: one to report on, one to tune on."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from PIL import Image

from photographs import holdout
from photographs.photos import read_shard
from photographs.texts import describe, statistics
from seewhen.benchmarks.base import Sample
from seewhen.benchmarks.chair.coco import image_key
from seewhen.benchmarks.chair.files import chair_image_lists
from seewhen.benchmarks.pope.build import build_questions, question
from seewhen.benchmarks.pope.questions import KINDS
from seewhen.benchmarks.records import read_records

TABLE = "coco_objects.json.gz"
CAPTIONED = "opera-llava-1.5"  # the list of images that most papers on CHAIR share


def write_folders(store: Path, out: Path) -> dict[str, int]:
    """`out/test` and `out/validation`; returns how many photographs and questions each has."""
    pictures: dict[int, bytes] = {}
    for shard in sorted(store.glob("heldout-*.safetensors")):
        pictures |= read_shard(shard)
    lists = holdout.read()
    counts = {}
    for name in ("test", "validation"):
        folder = out / name
        mine = {n: p for n, p in pictures.items() if (n in lists["validation"]) == (name == "validation")}
        _write_pictures(folder / "val2014", mine)
        shutil.copyfile(store / TABLE, folder / TABLE)
        counts[f"{name} photographs"] = len(mine)
        for kind in KINDS:
            made = _test(store, kind, mine) if name == "test" else _validation(store, kind, mine)
            _write_questions(folder / f"coco_pope_{kind}.json", made)
            counts[f"{name} {kind}"] = len(made)
        captioned = {int(n) for n in chair_image_lists()[CAPTIONED]} if name == "test" else set(mine)
        chosen = [str(n) for n in holdout.shuffled(captioned & set(mine), "captions")]
        (folder / "chair.txt").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        counts[f"{name} captions"] = len(chosen)
    _write_calibration(store, out / "validation")
    return counts


def _write_calibration(store: Path, folder: Path, count: int = 100) -> None:
    """What VTI and ICT are fitted on, of validation photographs: true and embellished descriptions, questions."""
    names, objects = holdout.load_table(store / TABLE)
    chosen = [int(line) for line in (folder / "chair.txt").read_text("utf-8").split()][:count]
    known = statistics(names, [objects[n] for n in chosen])
    told, asked = [], []
    for number in chosen:
        image, shown = f"val2014/COCO_val2014_{number:012d}.jpg", objects[number]
        extra = {known.absent(shown, "adversarial", random.Random(f"{number}/{i}")) for i in range(2)}
        # The same stream twice: both descriptions begin alike and differ in what nobody saw.
        faithful, hallucinated = (
            describe([names[i] for i in things], random.Random(number)) for things in (shown, (*shown, *extra))
        )
        told.append({"image": image, "faithful": faithful, "hallucinated": hallucinated})
        rng = random.Random(f"{number}/ask")
        for thing, answer in ((rng.choice(shown), "yes"), (known.absent(shown, "adversarial", rng), "no")):
            asked.append({"image": image, "question": question(names[thing]), "answer": answer})
    _write_questions(folder / "vti.jsonl", told)
    _write_questions(folder / "ict.jsonl", asked)


def _write_pictures(folder: Path, pictures: Mapping[int, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, content in pictures.items():
        path = folder / f"COCO_val2014_{number:012d}.jpg"
        if not path.is_file():
            with Image.open(io.BytesIO(content)) as picture:
                picture.convert("RGB").save(path, "JPEG", quality=95)


def _test(store: Path, kind: str, available: Mapping[int, bytes]) -> list[dict]:
    """POPE's questions about the photographs that are there."""
    records = [record for _, record in read_records(store / f"coco_pope_{kind}.json")]
    return [dict(r) for r in records if int(image_key(r["image"])) in available]


def _validation(store: Path, kind: str, available: Iterable[int]) -> list[dict]:
    """Questions made by POPE's recipe, for tuning."""
    names, objects = holdout.load_table(store / TABLE)
    shown = {str(n): frozenset(names[i] for i in objects[n]) for n in available}
    return [_record(i + 1, q) for i, q in enumerate(build_questions(shown, kind, name="coco", images=300))]


def _record(number: int, sample: Sample) -> dict:
    image = f"COCO_val2014_{int(sample.image):012d}.jpg"
    return {"question_id": number, "image": image, "text": sample.question, "label": sample.truth}


def _write_questions(path: Path, records: Iterable[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
