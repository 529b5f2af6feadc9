"""Makes everything training needs from its public sources, once, on any machine.

    python -m photographs.prepare holdout --data DATA --photographs REPO --annotated REPO...
    python -m photographs.prepare trained --data DATA --photographs REPO --count 66656
    python -m photographs.prepare photographs --data DATA --photographs REPO --annotated REPO... --out STORE
    python -m photographs.prepare tower --onnx vit_s_focus.onnx --out STORE
    python -m photographs.prepare teacher --pth efficientnet-lite0.pth --out STORE
    python -m photographs.prepare answers --gguf SmolLM2.gguf --out STORE
    python -m photographs.prepare pieces --gguf SmolLM2.gguf --data DATA --out STORE --pieces PIECES

REPO is a clone (its git directory is enough). README.md says where all of it comes from. STORE then holds what
`python -m photographs` trains from; PIECES holds it cut for the way to another machine, with checksums.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from photographs import boxes, dino, holdout, instructions, photos, pieces, teachers
from photographs.command import carry_out
from photographs.recipe import Recipe
from photographs.run import ANSWERS, TEACHER
from seewhen.backbones.photo import language

TRAIN_QUALITY, TEST_QUALITY = 20, 80
SHARD_BYTES = 25 << 20
SHARDS = 9
TABLE = "coco_objects.json.gz"


def sources(photographs: Path, annotated: Sequence[Path]) -> dict[int, tuple[Path, str]]:
    """Where each photograph is; full-size ones are preferred."""
    found = {n: (photographs, blob) for n, blob in photos.names_in(photographs, ["train2017/"]).items()}
    for repository in annotated:
        found |= {n: (repository, blob) for n, blob in photos.names_in(repository, []).items()}
    return found


def encoded(
    where: dict[int, tuple[Path, str]], numbers: Sequence[int], quality: int
) -> Iterator[tuple[int, bytes]]:
    """Photographs as small squares, in order."""
    for repository in sorted({where[n][0] for n in numbers}):
        mine = [n for n in numbers if where[n][0] == repository]
        for number, content in zip(mine, photos.blobs(repository, [where[n][1] for n in mine]), strict=True):
            yield number, photos.shrink(content, quality)


def make_holdout(options: argparse.Namespace) -> None:
    _, objects = holdout.load_table(options.data / TABLE)
    annotated = {n for repository in options.annotated for n in photos.names_in(repository, [])}
    lists = holdout.build(options.data, annotated, objects, photos.names_in(options.photographs, ["train2017/"]))
    holdout.write(lists)
    print({name: len(numbers) for name, numbers in lists.items()})


def make_trained(options: argparse.Namespace) -> None:
    """The list of what is trained on: as many as the shards held, in the order in which they are filled."""
    _, objects = holdout.load_table(options.data / TABLE)
    free = photos.names_in(options.photographs, ["train2017/"])
    order = holdout.training_order(objects, free, frozenset().union(*holdout.read().values()))
    holdout.write_trained(order[: options.count])


def make_photographs(options: argparse.Namespace) -> None:
    _, objects = holdout.load_table(options.data / TABLE)
    where = sources(options.photographs, options.annotated)
    lists = holdout.read()
    held_out = frozenset().union(*lists.values())
    options.out.mkdir(parents=True, exist_ok=True)

    free = photos.names_in(options.photographs, ["train2017/"])
    # Validation first: training looks at it from the first step on, at the rest only when it is over.
    tested = sorted((n for n in held_out if n in where), key=lambda n: (n not in lists["validation"], n))
    order = holdout.training_order(objects, free, held_out)
    for kind, numbers, quality in (("heldout", tested, TEST_QUALITY), ("train", order, TRAIN_QUALITY)):
        cut = photos.shards_of(encoded(where, numbers, quality), SHARD_BYTES, options.shards)
        for count, content in enumerate(cut):
            photos.write_shard(options.out / f"{kind}-{count:02d}.safetensors", content)
            print(f"{kind}-{count:02d}: {len(content)} photographs", flush=True)
    (options.out / "boxes.json").write_text(json.dumps(boxes.collect(options.annotated)), encoding="utf-8")


def make_tower(options: argparse.Namespace) -> None:
    dino.convert(options.onnx, options.out / "dinov2-small.int8.safetensors")


def make_teacher(options: argparse.Namespace) -> None:
    teachers.save_efficientnet(options.pth, options.out / TEACHER)


def make_answers(options: argparse.Namespace) -> None:
    """What the language model says by itself, made ahead: minutes here that training need not spend."""
    stage = Recipe().finetune
    spoken, tokenizer = language.load(options.gguf)
    instructions.make(options.out / ANSWERS, spoken, tokenizer, stage.texts, stage.text_tokens, batch=64)


def make_pieces(options: argparse.Namespace) -> None:
    shutil.copyfile(options.data / TABLE, options.out / TABLE)
    for kind in ("random", "popular", "adversarial"):
        name = f"coco_pope_{kind}.json"
        shutil.copyfile(options.data / "pope" / name, options.out / name)
    shutil.copyfile(options.gguf, options.out / "smollm2.gguf")
    pieces.cut(options.out, options.pieces)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m photographs.prepare", description=__doc__)
    commands = parser.add_subparsers(required=True)
    for name, work in (("holdout", make_holdout), ("photographs", make_photographs)):
        command = commands.add_parser(name)
        command.set_defaults(work=work)
        command.add_argument(
            "--data", type=Path, required=True, help="the benchmarks' files and the table of objects"
        )
        command.add_argument("--photographs", type=Path, required=True, help="clone with train2017/*.jpg")
        command.add_argument("--annotated", type=Path, nargs="*", default=[], help="clones with boxes")
        command.add_argument("--out", type=Path, default=Path("store"))
        command.add_argument("--shards", type=int, default=SHARDS)
    command = commands.add_parser("trained")
    command.set_defaults(work=make_trained)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--photographs", type=Path, required=True, help="clone with train2017/*.jpg")
    command.add_argument("--count", type=int, required=True, help="photographs in the shards: see the log")
    command = commands.add_parser("tower")
    command.set_defaults(work=make_tower)
    command.add_argument("--onnx", type=Path, required=True)
    command.add_argument("--out", type=Path, default=Path("store"))
    command = commands.add_parser("teacher")
    command.set_defaults(work=make_teacher)
    command.add_argument("--pth", type=Path, required=True)
    command.add_argument("--out", type=Path, default=Path("store"))
    command = commands.add_parser("answers")
    command.set_defaults(work=make_answers)
    command.add_argument("--gguf", type=Path, required=True)
    command.add_argument("--out", type=Path, default=Path("store"))
    command = commands.add_parser("pieces")
    command.set_defaults(work=make_pieces)
    command.add_argument("--gguf", type=Path, required=True)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--out", type=Path, default=Path("store"))
    command.add_argument("--pieces", type=Path, default=Path("pieces"))
    carry_out(parser)


if __name__ == "__main__":
    main()
