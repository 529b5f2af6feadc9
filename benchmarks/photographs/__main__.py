"""Train, pack and measure a small vision-language model on photographs.

    python -m photographs train --store STORE --out RUN      the stages that RUN does not hold yet
    python -m photographs pack --store STORE --out RUN       RUN/photo.int8.safetensors and RUN/model
    python -m photographs exam --store STORE --out RUN       RUN/exam/test, RUN/exam/validation
    python -m photographs measure --out RUN                  plain greedy POPE and CHAIR: RUN/measured.json
    python -m photographs look --store STORE --out RUN       where it looks, when it doubts: RUN/look
    python -m photographs smoke --out FOLDER                 all of it, tiny and random, in seconds

STORE is what `python -m photographs.prepare` made. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from photographs.command import carry_out


def train(options: argparse.Namespace) -> None:
    import torch

    from photographs.recipe import Recipe, load
    from photographs.run import Place, train

    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    recipe = load(options.recipe) if options.recipe else Recipe()
    train(Place(options.store, options.out, device, options.workers), recipe, options.until)


def pack(options: argparse.Namespace) -> None:
    from photographs import packing
    from seewhen.backbones.photo.building import build

    packed = packing.pack(options.out, options.store / "dinov2-small.int8.safetensors")
    build(packed, options.store / "smollm2.gguf", options.out / "model")
    print(f"{packed}: {packed.stat().st_size / 1e6:.1f} MB; {options.out / 'model'}")


def exam(options: argparse.Namespace) -> None:
    from photographs.exam import write_folders

    print(json.dumps(write_folders(options.store, options.out / "exam"), indent=1))


def measure(options: argparse.Namespace) -> None:
    from photographs.study import measure_regular

    print(json.dumps(measure_regular(options.out, options.limit, options.batch), indent=1))


def look(options: argparse.Namespace) -> None:
    from photographs.look import look

    told = look(options.store, options.out, options.limit, options.tokens, options.batch)
    print(json.dumps({name: value if isinstance(value, (int, str)) else "drawn" for name, value in told.items()}))


def smoke(options: argparse.Namespace) -> None:
    from photographs.tiny import smoke

    smoke(options.out)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m photographs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for work in (train, pack, exam, measure, look, smoke):
        command = commands.add_parser(work.__name__)
        command.set_defaults(work=work)
        command.add_argument("--out", type=Path, required=True)
        if work in (train, pack, exam, look):
            command.add_argument("--store", type=Path, required=True)
        if work is train:
            command.add_argument("--recipe", type=Path, help="JSON with what differs from the recipe's defaults")
            command.add_argument("--until", default="finetune", help="the last stage: tower, projector, finetune")
            command.add_argument("--workers", type=int, default=os.cpu_count() or 1)
            command.add_argument("--device", help="cuda or cpu; by default what there is")
        if work in (measure, look):
            command.add_argument("--limit", type=int, help="only so many photographs")
            command.add_argument("--batch", type=int, default=128 if work is measure else 8)
        if work is look:
            command.add_argument("--tokens", type=int, default=64)
    carry_out(parser)


if __name__ == "__main__":
    main()
